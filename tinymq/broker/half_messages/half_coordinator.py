"""The coordinator of half messages, on the broker that leads the partition of `__coordinator` with the producer group.

Every decision is a replicated command. Checks under way are in memory only (check_turns.py): answers are commands that
name the check, so an answer to an earlier leader counts as any other, and an answer that comes twice counts once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import NamedTuple, Protocol

import structlog

from tinymq.base.clock import Clock, within
from tinymq.base.errors import DeadlineExceeded, InvalidRequest, TinymqError
from tinymq.base.meter import Meter
from tinymq.base.types import PartitionId, check_producer_group, transaction_name
from tinymq.broker.coordinator.led_replicas import LedReplicas, Replicas, confirm
from tinymq.broker.coordinator.transaction_ends import PartitionLeaders
from tinymq.broker.coordinator.transaction_topics import TransactionTopics
from tinymq.broker.half_messages.check_turns import CheckTurns
from tinymq.broker.half_messages.half_counts import Halves, count_halves
from tinymq.broker.half_messages.half_ends import HalfEnds
from tinymq.broker.half_messages.half_errors import begin_error, error_of
from tinymq.broker.members.coordinator_replica import CoordinatorReplica
from tinymq.broker.serve.producer_ids import BLOCK, ProducerIds
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.half import half_message as rules
from tinymq.broker.transactions.half.half_commands import BeginHalf, CountCheck, EndHalf, GiveUpHalf
from tinymq.broker.transactions.half.half_message import HalfMessage
from tinymq.broker.transactions.half.half_messages import CONTEXT_BYTES_MAX
from tinymq.broker.transactions.rules import Refusal
from tinymq.broker.transactions.transactional_id import Phase
from tinymq.format.feature_level import TRANSACTIONS_LEVEL
from tinymq.registry.service import RegistryService

LOOK_S = 1.0  # between two looks at all half messages of a partition
RETRY_S = 0.2  # between two questions to a partition's leader
RETRY_CHECK_S = 5.0  # after a partition's leader did not show a half message
STAGED_S_MAX = 120.0  # after this leader first saw a half message: its batch is staged by then, or it is dropped
STAGED_LOOKS_MAX = 64  # half messages about whose batch leaders are asked in one look
CHECKS_MAX = 64  # in one answer
CHECKS_BYTES_MAX = 4 * 1024 * 1024  # of the batches in one answer. The last one may exceed it
AT_ONCE = 8  # batches that are fetched side by side

logger = structlog.get_logger("tinymq.broker")


class HalfLeaders(PartitionLeaders, Protocol):
    """The leaders of partitions, as this coordinator calls them. The calls never raise."""

    def staged(self, transaction: TransactionId, place: PartitionId) -> Awaitable[bytes | None]:
        """The batch of a half message; b"": nothing of it is staged; None: the leader has not answered."""
        ...


class Partitions(Protocol):
    """The partitions of `__coordinator` on this broker (TransactionCoordinator)."""

    def find(self, name: str) -> CoordinatorReplica:
        """The replica of the partition that has a producer group. Raises NotLeader, NotReady unless it may answer."""
        ...

    def at(self, number: int) -> CoordinatorReplica:
        """The replica of the partition `number`. Raises as `find`."""
        ...

    def led(self) -> list[int]:
        """The numbers of the partitions that this broker leads, in order."""
        ...

    def check_loss_noted(self, replica: CoordinatorReplica) -> None:
        """Raises NotReady until the state knows of an accepted loss, because it may lack decisions."""
        ...


class Check(NamedTuple):
    """A half message whose outcome a member is asked for."""

    half: HalfMessage
    batch: bytes


class _Led:
    """The leader's own state of one replica, while this broker leads it."""

    def __init__(self) -> None:
        self.turns = CheckTurns()
        self.staged: set[TransactionId] = set()  # their batches are known to be staged
        self.since_s: dict[TransactionId, float] = {}  # monotonic time at which others were first seen
        self.looked_s = float("-inf")  # monotonic time of the newest look at all half messages
        self.seen = Halves()


class HalfCoordinator:
    """One per broker, for the partitions of `__coordinator` that it leads."""

    def __init__(
        self, registry: RegistryService, partitions: Partitions, replicas: Replicas, producer_ids: ProducerIds,
        leaders: HalfLeaders, clock: Clock, meter: Meter,
    ) -> None:  # fmt: skip
        self._partitions = partitions
        self._replicas = replicas
        self._topics = TransactionTopics(registry)
        self._producer_ids = producer_ids
        self._leaders = leaders
        self._clock = clock
        self._meter = meter
        self._work = LedReplicas(replicas, self._advance, clock)
        self._ends = HalfEnds(leaders, self._topics)
        self._led: dict[str, _Led] = {}  # by replica name

    def start(self) -> asyncio.Task[None]:
        return self._work.start()

    async def stop(self) -> None:
        await self._work.stop()
        await self._ends.stop()

    def on_changed(self, replica: CoordinatorReplica, half: HalfMessage) -> None:
        """Note that a command on a half message is applied."""
        if replica.leading and not half.is_open:
            self._ends.send(replica, half)

    def on_role(self, replica: CoordinatorReplica) -> None:
        """A replica began to lead, or stopped: all members ask again, and all checks under way are due again."""
        before = self._led.pop(replica.name, None)
        if before is not None:
            before.turns.wake_all()
        self._ends.wake_all()

    # ---- what senders ask ---------------------------------------------------------------------------------------

    async def begin(self, group: str, place: PartitionId, context: bytes, check_after_us: int) -> TransactionId:
        """Begin a half message, whose batch is staged after this.

        Raises InvalidName, InvalidRequest (the context or the time is out of bounds, or the topic acknowledges what a
        power cut takes), UnknownPartition, NotLeader, NotReady, QuotaExceeded (too many are open), OutcomeUnknown.
        """
        check_producer_group(group)
        if len(context) > CONTEXT_BYTES_MAX:
            raise InvalidRequest(f"a context of {len(context)} bytes", hint=f"at most {CONTEXT_BYTES_MAX}")
        if not rules.CHECK_AFTER_US_MIN <= check_after_us <= rules.CHECK_AFTER_US_MAX:
            raise InvalidRequest(f"a first check after {check_after_us / 1e6:g} s", hint="from 1 s to 1 h")
        await self._topics.check([place])
        replica = self._partitions.find(group)
        fresh = await self._producer_ids.take()
        # after a loss, skip the ids of a block that was taken before it: they may have been used
        for _ in range(BLOCK):
            if fresh >= replica.transactional_ids.loss.fresh_producer_id:
                break
            fresh = await self._producer_ids.take()
        result = await replica.decide_half(group, BeginHalf(fresh, place, context, check_after_us))
        if isinstance(result, Refusal):
            raise begin_error(result, group)
        return result.transaction

    async def end(self, group: str, transaction: TransactionId, *, commit: bool, decide_s: float) -> None:
        """Decide about a half message. Returns when the decision is replicated, or if it was decided so before.

        Raises TransactionAborted (a commit of what is rolled back, or was never staged), InvalidRequest (a roll-back of
        what is committed), DeadlineExceeded (its partition's leader has not answered within `decide_s` seconds, and it
        is still open), NotLeader, NotReady, and OutcomeUnknown: repeat the call, or it is too long over.
        """
        replica = self._partitions.find(group)
        held = await self._held(replica, group, transaction, decide_s) if commit else None
        result = await replica.decide_half(group, EndHalf(transaction, commit, held))
        if isinstance(result, HalfMessage):
            self._meter.half_decided("committed" if result.phase is Phase.COMMITTED else "rolled_back")
            result = rules.outcome_of(result.phase)
        if result is not (Refusal.COMMITTED if commit else Refusal.ABORTED):
            raise error_of(result, group, transaction)

    async def wait_over(self, group: str, transaction: TransactionId, timeout_s: float) -> bool:
        """Wait until the partition has applied the decision. False: the time is up, or another broker leads."""
        until_s = self._clock.monotonic() + timeout_s
        try:
            while (half := self._find(group, transaction)) is not None and not self._ends.has_applied(half):
                left_s = max(0.0, until_s - self._clock.monotonic())
                await within(self._clock, self._ends.wait(half), left_s, DeadlineExceeded("not visible in time"))
        except TinymqError:
            return False
        return True

    def _find(self, group: str, transaction: TransactionId) -> HalfMessage | None:
        return self._partitions.find(group).transactional_ids.half_messages.halves.get(transaction)

    async def _held(
        self, replica: CoordinatorReplica, group: str, transaction: TransactionId, decide_s: float
    ) -> int | None:
        """How many batches of an open half message its partition holds; None if the partition was deleted, or the half
        message is not open: the command that follows raises the reason. Raises DeadlineExceeded, NotLeader."""
        until_s = self._clock.monotonic() + decide_s
        while True:
            half = replica.transactional_ids.half_messages.halves.get(transaction)
            if half is None or half.group != group or not half.is_open:
                return None
            held = await self._leaders.held(transaction, [half.place])
            if half.place in held:
                return held[half.place]
            if await self._topics.deleted([half.place]):
                return None
            if self._clock.monotonic() >= until_s:
                raise DeadlineExceeded("the partition has not said whether it holds the half message")
            await self._clock.sleep(RETRY_S)
            replica.check_leading()

    # ---- what checkers ask --------------------------------------------------------------------------------------

    async def checks(self, group: str, member: bytes, most: int, wait_s: float) -> list[Check]:
        """Half messages whose outcome the member is asked for, as soon as there are some; [] after `wait_s` seconds.

        Raises InvalidName, NotLeader, NotReady, QuotaExceeded (too many members), DeadlineExceeded.
        """
        replica = self._partitions.find(check_producer_group(group))
        await confirm(replica)
        until_s = self._clock.monotonic() + wait_s
        while True:
            replica.check_leading()
            turns, now_s = self._led_of(replica).turns, self._clock.monotonic()
            turns.see(group, member, now_s)
            halves = replica.transactional_ids.half_messages.of_group(group)
            taken = turns.take(halves, replica.group.append_time_now_us(), now_s, min(most, CHECKS_MAX))
            found = await self._shown(turns, taken)
            if found or self._clock.monotonic() >= until_s:
                return found
            waiting = turns.wait(group)
            try:
                left_s = max(0.0, until_s - self._clock.monotonic())
                await within(self._clock, waiting, left_s, DeadlineExceeded("nothing to check"))
            except DeadlineExceeded:
                return []
            finally:
                turns.stop_waiting(group, waiting)

    async def count(self, group: str, transaction: TransactionId, number: int) -> None:
        """Note a member's answer that it does not know the outcome. An answer that comes twice, or late, is ignored.

        Raises NotLeader, NotReady, QuotaExceeded, OutcomeUnknown: repeat the call.
        """
        replica = self._partitions.find(group)
        result = await replica.decide_half(group, CountCheck(transaction, number))
        if isinstance(result, HalfMessage):
            self._led_of(replica).turns.end(transaction)
            self._meter.half_checked()

    async def _shown(self, turns: CheckTurns, taken: Sequence[HalfMessage]) -> list[Check]:
        """The half messages with their batches. Those that cannot be shown now have their turn later."""
        found: list[Check] = []
        size = 0
        for first in range(0, len(taken), AT_ONCE):
            some, now_s = taken[first : first + AT_ONCE], self._clock.monotonic()
            if size > CHECKS_BYTES_MAX:
                for half in some:
                    turns.pause(half.transaction, now_s)
                continue
            batches = await asyncio.gather(*(self._leaders.staged(half.transaction, half.place) for half in some))
            for half, batch in zip(some, batches, strict=True):
                if batch:
                    found.append(Check(half, batch))
                    size += len(batch)
                else:
                    turns.pause(half.transaction, now_s + RETRY_CHECK_S)
        return found

    # ---- what people ask ----------------------------------------------------------------------------------------

    def led(self) -> list[int]:
        """The numbers of the coordinator's partitions that this broker leads, in order."""
        return self._partitions.led()

    async def halves(self, number: int) -> dict[TransactionId, HalfMessage]:
        """The half messages in the coordinator's partition `number`, as of a moment during this call.

        Raises NotLeader, NotReady, DeadlineExceeded.
        """
        replica = self._partitions.at(number)
        await confirm(replica)
        return dict(replica.transactional_ids.half_messages.halves)

    def checkers(self, number: int, group: str) -> int:
        """How many members of a producer group wait for checks. Raises NotLeader, NotReady."""
        return self._led_of(self._partitions.at(number)).turns.members(group, self._clock.monotonic())

    def unfinished(self) -> Halves:
        """The half messages here that are not over, as of a moment ago."""
        total = Halves()
        for replica in self._replicas().values():
            if replica.leading and replica.name in self._led:
                total = total.beside(self._led[replica.name].seen)
        return total

    # ---- time ---------------------------------------------------------------------------------------------------

    def _led_of(self, replica: CoordinatorReplica) -> _Led:
        return self._led.setdefault(replica.name, _Led())

    async def _advance(self, replica: CoordinatorReplica) -> None:
        """Wake members for due checks, give up half messages whose schedule is over, and send ends again."""
        led, now_s = self._led_of(replica), self._clock.monotonic()
        if now_s - led.looked_s < LOOK_S or replica.group.feature_level < TRANSACTIONS_LEVEL:
            return
        led.looked_s = now_s
        try:
            self._partitions.check_loss_noted(replica)
            halves = list(replica.transactional_ids.half_messages.halves.values())
            now_us = replica.group.append_time_now_us()
            led.seen = count_halves(halves, now_us)
            for half in halves:
                if not half.is_open:
                    self._ends.send(replica, half)
                elif rules.is_given_up(half, now_us):
                    await self._give_up(replica, half)
            for group in led.turns.awaited:
                of_group = (half for half in halves if half.group == group)
                if any(led.turns.is_free(half, now_us, now_s) for half in of_group):
                    led.turns.wake(group)
            led.turns.forget(replica.transactional_ids.half_messages.halves, now_s)
            await self._drop_unstaged(replica, led, halves, now_s)
        except TinymqError as error:
            logger.info("half_messages_wait", replica=replica.name, error=error.code, reason=str(error))

    async def _give_up(self, replica: CoordinatorReplica, half: HalfMessage) -> None:
        result = await replica.decide_half(half.group, GiveUpHalf(half.transaction))
        if isinstance(result, HalfMessage) and result.phase is Phase.ABORTED:
            self._meter.half_decided("given_up")
            logger.warning(
                "half_message_given_up", group=half.group, half_message=transaction_name(*half.transaction),
                checks=half.checks, context=half.context[:100],
            )  # fmt: skip

    async def _drop_unstaged(
        self, replica: CoordinatorReplica, led: _Led, halves: Iterable[HalfMessage], now_s: float
    ) -> None:
        """Roll back half messages whose senders never staged them.

        A sender does not believe that its batch is staged if it hears so later than half of STAGED_S_MAX after it began
        the half message. So a batch that is staged after this look was not acknowledged to anybody. Both times are
        monotonic, because the append clock may jump.
        """
        led.staged &= {half.transaction for half in halves}
        new = [half for half in halves if half.is_open and not half.checks and half.transaction not in led.staged]
        led.since_s = {half.transaction: led.since_s.get(half.transaction, now_s) for half in new}
        late = [half for half in new if now_s - led.since_s[half.transaction] >= STAGED_S_MAX]
        some = late[:STAGED_LOOKS_MAX]
        answers = await asyncio.gather(*(self._leaders.held(half.transaction, [half.place]) for half in some))
        for half, answer in zip(some, answers, strict=True):
            held = answer.get(half.place)
            if held is None and not await self._topics.deleted([half.place]):
                continue  # its leader did not answer: the next look asks again
            if held:
                led.staged.add(half.transaction)
            else:
                result = await replica.decide_half(half.group, EndHalf(half.transaction, commit=False))
                if isinstance(result, HalfMessage):
                    self._meter.half_decided("unstaged")
