"""Preferred-leader election: returns leaderships to their preferred brokers, one at a time.

`decide` is pure. `PreferredLeaders` checks on a clock while this broker leads a group for which another broker is
preferred. It transfers one leadership at a time and pauses before the next. The target has to be alive and registered
for a while, and its replica has to be able to lead at once. A broker that does not take a leadership, or gives it up
while it is alive, is left alone, each time for longer. A leadership that an operator moved stays where it is, and so
does that of the metadata group (docs/adr/0014).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from tinymq.base.clock import Clock, Timer
from tinymq.base.retry import Backoff
from tinymq.base.types import METADATA_GROUP, GroupId
from tinymq.raft import Group, LeadershipOrigin

LOOK_S = 1.0  # between two checks
WATCH_S = 0.02  # between two checks while a leadership is being transferred
PAUSE_S = (0.2, 0.6)  # after a transfer, at random, so that brokers with the same target do not act in step
TRY_S = 1.0  # after this a transfer is given up, because writers wait for it
BACKOFF = Backoff(30.0, 900.0)  # for a broker that did not keep a leadership

logger = structlog.get_logger("tinymq.broker")


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A group that this broker leads although another broker is preferred."""

    group: GroupId
    preferred: int
    origin: LeadershipOrigin  # how this broker became its leader
    since_s: float  # monotonic time
    ready: bool  # the preferred replica could take over at once


@dataclass(frozen=True, slots=True)
class Target:
    """A live broker that is preferred for some group, as far as this broker knows."""

    alive_since_s: float
    registered: bool
    backoff_until_s: float = 0.0


def decide(
    misplaced: Iterable[Misplaced], targets: Mapping[int, Target], now_s: float, return_s: float
) -> Misplaced | None:
    """The leadership to transfer now: the one that has been misplaced longest among those that may return; or None.

    `targets` are the live brokers. One transfer at a time keeps the pause of writers short.
    """
    able = [each for each in misplaced if each.ready and may_return(each, targets.get(each.preferred), now_s, return_s)]
    return min(able, key=lambda each: (each.since_s, each.group.topic_id, each.group.partition), default=None)


def may_return(misplaced: Misplaced, target: Target | None, now_s: float, return_s: float) -> bool:
    """Return whether a leadership may go back to its preferred broker now."""
    if target is None or not target.registered or now_s < target.backoff_until_s:
        return False
    if misplaced.origin is LeadershipOrigin.MANUAL and target.alive_since_s <= misplaced.since_s:
        return False  # an operator moved it, and the preferred broker has not restarted since
    return now_s - max(target.alive_since_s, misplaced.since_s) >= return_s


@dataclass(frozen=True, slots=True)
class Failures:
    """How often in a row a broker did not keep a leadership."""

    at_s: float  # monotonic time of the last one
    count: int = 1

    @property
    def until_s(self) -> float:
        """The end of the pause for this broker, in monotonic time."""
        return self.at_s + BACKOFF.pause_s(self.count)

    def again(self, now_s: float) -> Failures:
        # A failure long after the last pause is a new one, and starts with the shortest pause.
        lately = now_s < self.until_s + BACKOFF.pause_s_max
        return Failures(now_s, self.count + 1 if lately else 1)


class LeadershipHost(Protocol):
    """The part of the Raft host that preferred-leader election uses (tinymq.raft.Host)."""

    @property
    def groups(self) -> Mapping[GroupId, Group]: ...
    def alive(self, broker_id: int) -> bool: ...
    def transfer(self, group_id: GroupId, to: int | None = None, *, within_s: float | None = None) -> bool: ...


class PreferredLeaders:
    """Transfers misplaced leaderships of this broker back to their preferred brokers.

    Call `group_changed` and `peer_changed`. There is no timer while no leadership is misplaced. `registered` tells
    whether the registry has a broker.
    """

    def __init__(
        self, broker_id: int, host: LeadershipHost, registered: Callable[[int], bool], clock: Clock, rng: random.Random,
        return_s: float,
    ) -> None:  # fmt: skip
        self._broker_id = broker_id
        self._host = host
        self._registered = registered
        self._clock = clock
        self._rng = rng
        self._return_s = return_s
        self._since_s: dict[GroupId, tuple[int, float]] = {}  # misplaced: (term, monotonic time since when)
        self._began_s = clock.monotonic()
        self._alive_since_s: dict[int, float] = {}  # of brokers that came alive after `_began_s`
        self._failures: dict[int, Failures] = {}
        self._trying: tuple[GroupId, int] | None = None  # the transfer under way: (group, target)
        self._timer: Timer | None = None
        self._stopped = False

    def stop(self) -> None:
        """Start no further transfer."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    # ---- what happens --------------------------------------------------------------------------------------

    def peer_changed(self, broker_id: int, alive: bool) -> None:
        """Note that a broker came alive or is gone. Either ends its backoff."""
        self._failures.pop(broker_id, None)
        if alive:
            self._alive_since_s[broker_id] = self._clock.monotonic()
        else:
            self._alive_since_s.pop(broker_id, None)

    def group_changed(self, group: Group) -> None:
        """Note that the role, leader or term of a group has changed."""
        if group.id == METADATA_GROUP:
            return
        preferred = group.membership.replicas[0].broker_id
        if not group.is_leader or preferred == self._broker_id:
            self._since_s.pop(group.id, None)
            return
        before = self._since_s.get(group.id)
        if before is None or before[0] != group.term:
            self._since_s[group.id] = group.term, self._clock.monotonic()
            if (
                group.origin is LeadershipOrigin.TRANSFERRED
                and self._host.alive(preferred)
                and self._registered(preferred)
            ):
                # The preferred broker is alive and has given up the leadership, so its disk probably hung.
                self.back_off(preferred)
        if self._timer is None and not self._stopped:
            self._check_in(LOOK_S)

    def back_off(self, broker_id: int) -> None:
        """Pause transfers to a broker that did not keep a leadership. The pause doubles each time."""
        now_s = self._clock.monotonic()
        before = self._failures.get(broker_id)
        if before is None or before.at_s < now_s:  # many groups of one broker at one moment are one failure
            self._failures[broker_id] = Failures(now_s) if before is None else before.again(now_s)

    # ---- looking -------------------------------------------------------------------------------------------

    def _check_in(self, seconds: float) -> None:
        self._timer = self._clock.call_later(seconds, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._trying is not None and self._is_under_way(*self._trying):
            self._check_in(WATCH_S)
        elif self._trying is not None:
            self._trying = None
            self._check_in(self._rng.uniform(*PAUSE_S))
        elif (chosen := decide(self.misplaced(), self._targets(), self._clock.monotonic(), self._return_s)) is not None:
            logger.info("preferred_leader_elected", group=str(chosen.group), to=chosen.preferred)
            self._host.transfer(chosen.group, chosen.preferred, within_s=TRY_S)
            self._trying = chosen.group, chosen.preferred
            self._check_in(WATCH_S)
        elif self._since_s:
            self._check_in(LOOK_S)

    def _is_under_way(self, group_id: GroupId, to: int) -> bool:
        group = self._host.groups.get(group_id)
        if group is None or not group.is_leader:
            return False
        if group.is_transferring:
            return True
        logger.warning("preferred_leader_failed", group=str(group_id), to=to)
        self.back_off(to)
        return False

    def misplaced(self) -> list[Misplaced]:
        """Return the groups that this broker leads and another broker is preferred for."""
        misplaced = []
        for group_id, (_, since_s) in list(self._since_s.items()):
            group = self._host.groups.get(group_id)
            if group is None or group.origin is None:
                del self._since_s[group_id]
            else:
                preferred = group.membership.replicas[0].broker_id
                misplaced.append(
                    Misplaced(group_id, preferred, group.origin, since_s, not group.transfer_obstacle(preferred))
                )
        return misplaced

    def _targets(self) -> dict[int, Target]:
        targets = {}
        for broker_id in {self._host.groups[g].membership.replicas[0].broker_id: None for g in self._since_s}:
            if self._host.alive(broker_id):
                since_s = self._alive_since_s.get(broker_id, self._began_s)
                failures = self._failures.get(broker_id)
                until_s = 0.0 if failures is None else failures.until_s
                targets[broker_id] = Target(since_s, self._registered(broker_id), until_s)
        return targets
