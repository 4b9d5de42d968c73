"""Raises the cluster's feature level: decides when it rises, which members keep it down, and which brokers are refused.

`next_level` is the rule, and it is pure: the level is the lowest one that any member announces. Members are the voters,
every registered broker, and every broker that holds a replica. A member that is down counts with the level that it last
announced. The leader of the metadata group (with another registry: every broker) checks whenever something changes. It
raises the level by a command that takes effect only in the state that it examined. An operator holds the level by
making one broker announce a lower level than its build knows.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from tinymq.base.clock import Clock
from tinymq.base.errors import InvalidRequest, NotLeader, TinymqError, VersionConflict
from tinymq.format.feature_level import FIRST_LEVEL, KNOWN_LEVEL, check_member
from tinymq.log.broker_files.broker_identity import BrokerIdentity
from tinymq.registry.service import RegistryService
from tinymq.registry.state.effects import Effect

logger = structlog.get_logger("tinymq.broker")


@dataclass(frozen=True, slots=True)
class MemberLevel:
    """One broker that counts for the feature level."""

    broker_id: int
    announced: int  # at its last registration; FIRST_LEVEL if it never announced a level
    registered: bool
    voter: bool
    replicas: int  # how many replicas of partitions it holds


class FeatureLevelHost(Protocol):
    """The part of the Raft host that FeatureLevelControl uses (tinymq.raft.Host)."""

    feature_level: int

    def known_levels(self) -> Mapping[int, int]: ...
    async def enter_level(self, level: int) -> None: ...


class FeatureLevelStore(Protocol):
    """The part of the data directory that FeatureLevelControl uses."""

    @property
    def identity(self) -> BrokerIdentity: ...
    async def hold_feature_level(self, level: int) -> None: ...


def announced_level(identity: BrokerIdentity) -> int:
    """The level that a broker announces: the one that it knows, or a lower one while it is held, but never one below
    the cluster's."""
    held = identity.held_level or KNOWN_LEVEL
    return max(identity.feature_level, min(KNOWN_LEVEL, held))


def members_of(registry: RegistryService, voters: Collection[int]) -> list[MemberLevel]:
    """Return every broker that counts for the feature level, by id."""
    holds = Counter(replica.broker_id for queue in registry.get_all_queues() for replica in queue.replicas)
    registered = {broker.broker_id for broker in registry.get_all_brokers()}
    return [
        MemberLevel(
            broker_id, registry.announced_level(broker_id), broker_id in registered, broker_id in voters,
            holds[broker_id],
        )
        for broker_id in sorted({*voters, *registered, *holds})
    ]  # fmt: skip


def next_level(level: int, members: Iterable[MemberLevel], heard: Mapping[int, int]) -> int:
    """Return the feature level that the cluster should have. `heard` maps every live broker to the level that its build
    knows, because a broker that joins, or that restarted with an older build, has not registered yet."""
    return max(level, min([KNOWN_LEVEL, *(member.announced for member in members), *heard.values()]))


class FeatureLevelControl:
    """Runs from `start` to `stop`. All calls on the loop."""

    def __init__(
        self, broker_id: int, *, registry: RegistryService, peers: FeatureLevelHost, store: FeatureLevelStore,
        voters: Callable[[], Collection[int]], announce: Callable[[int], None], clock: Clock, every_s: float,
    ) -> None:  # fmt: skip
        """`announce` registers this broker with another level. `every_s`: the time between two checks while nothing
        changes."""
        self._broker_id = broker_id
        self._registry = registry
        self._peers = peers
        self._store = store
        self._voters = voters
        self._announce = announce
        self._clock = clock
        self._every_s = every_s
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._entered = 0  # the level that is stored durably: brokers that do not know it are refused
        self._failing = ""  # code of the last error, which is logged once

    def start(self) -> asyncio.Task[None]:
        """Start the task, which ends with `stop` or by a broken invariant. Raises UnsupportedVersion if the registry is
        at a level that this build does not know."""
        check_member(self._broker_id, KNOWN_LEVEL, self._registry.feature_level)
        self._registry.watch(self._changed)
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self._task

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # ---- operators' requests -------------------------------------------------------------------------

    @property
    def level(self) -> int:
        return self._registry.feature_level

    @property
    def held(self) -> int:
        """The highest level that this broker may announce; 0: it is not held."""
        return self._store.identity.held_level

    def members(self) -> list[MemberLevel]:
        return members_of(self._registry, self._voters())

    async def hold(self, level: int = 0) -> None:
        """From now on announce at most `level` (0: the present one), so that the cluster's level does not rise.
        Durable. Raises InvalidRequest for a level that this build does not know, or that is below the present one."""
        level = level or self.level
        if not self.level <= level <= KNOWN_LEVEL:
            why = f"the cluster is at feature level {self.level}, and broker {self._broker_id} knows {KNOWN_LEVEL}"
            raise InvalidRequest(f"feature level {level} cannot be held", hint=why)
        await self._hold(level)

    async def release(self) -> None:
        """Announce the level that this build knows again. Durable."""
        await self._hold(0)

    async def _hold(self, level: int) -> None:
        await self._store.hold_feature_level(level)
        logger.info("feature_level_held" if level else "feature_level_released", level=level or KNOWN_LEVEL)
        self._announce(announced_level(self._store.identity))
        self._wake.set()

    # ---- the task --------------------------------------------------------------------------------------

    def _changed(self, effects: Sequence[Effect]) -> None:
        self._peers.feature_level = max(self._peers.feature_level, self._registry.feature_level)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._check()
                self._failing = ""
            except (NotLeader, VersionConflict):
                pass  # another broker raises it, or a broker registered meanwhile, which wakes this task again
            except TinymqError as error:
                if self._failing != error.code:
                    logger.warning("feature_level_stays", level=self.level, error=error.code, reason=str(error))
                self._failing = error.code
            timer = self._clock.call_later(self._every_s, self._wake.set)
            await self._wake.wait()
            self._wake.clear()
            timer.cancel()

    async def _check(self) -> None:
        level, version = self._registry.feature_level, self._registry.version
        # The level is stored here before anything of it is used, so that an older build refuses this data directory.
        if level > self._entered:
            await self._enter(level)
            return
        if level < KNOWN_LEVEL:
            raised = next_level(level, self.members(), self._peers.known_levels())
            if raised > level:
                # Takes effect only in the state of `version`: a broker with an older build may register meanwhile.
                await self._registry.raise_feature_level(raised, version)
                return
        for broker in self._registry.get_all_brokers():
            if broker.feature_level < level and broker.broker_id != self._broker_id:
                logger.warning("broker_too_old", broker=broker.broker_id, knows=broker.feature_level, level=level)
                await self._registry.unregister_broker(broker.broker_id, broker.session)

    async def _enter(self, level: int) -> None:
        if level > FIRST_LEVEL:
            await self._peers.enter_level(level)
            logger.info("feature_level", level=level)
            self._announce(announced_level(self._store.identity))
        self._entered = level
        self._wake.set()
