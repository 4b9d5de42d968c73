"""The worker that serves callers of QueueService, who lease one record per call and keep no stream.

All callers that lease records of one group from one leader share one worker, which has a session of its own. The worker
asks for one record per waiting caller, and counts each record as started. Where the leader would ask a worker with a
stream whether it still works on a record, this worker lets the lease end. A caller's lease names its grant, so any
later leader can settle it without memory of this worker.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import NamedTuple

from tinymq.base.clock import Clock, within
from tinymq.base.errors import DeadlineExceeded, LeaseLost, NotReady, OutcomeUnknown, TinymqError
from tinymq.base.types import GroupId
from tinymq.broker.groups.lease_values import Grant, Lease
from tinymq.broker.partition.partition import Partition
from tinymq.broker.state.queue_group import REJECTED, SESSION_BYTES
from tinymq.broker.work.attachment import Attached, AttachRequest, Refused, Verb
from tinymq.broker.work.granted_records import GrantedBatch
from tinymq.broker.work.workers import Workers

GRACE_S = 0.5  # shortest wait while the group may have a record, even for a caller that asks for no wait
WAITING_MAX = 1000  # waiting callers of one group in one partition
CREDIT_BYTES = 1 << 62  # practically no bound: the number of callers bounds the records


class Leased(NamedTuple):
    """A record that is leased to a caller."""

    grant: Grant
    batch: GrantedBatch  # the batch that contains the record
    lease_s: float


class UnaryWorker:
    """The callers of one group in one partition that this broker leads. It is the WorkerPort of one attachment."""

    client = "QueueService"
    is_full = False

    def __init__(self, workers: Workers, partition: Partition, group: str, group_id: int, session: bytes) -> None:
        """Raises as `Workers.attach`."""
        self.over = False
        self._workers = workers
        self._waiting: dict[asyncio.Future[Leased], None] = {}  # the oldest first
        self._settling: dict[int, asyncio.Future[list[Refused]]] = {}  # by request id
        self._requests = 0
        request = AttachRequest(
            number=1, topic_id=partition.group.id.topic_id, partition=partition.group.id.partition, group=group,
            group_id=group_id, session=session, held=(), credit_records=0, credit_bytes=CREDIT_BYTES, term=0,
        )  # fmt: skip
        self.leader, self._at = workers.attach(self, request)

    @property
    def is_idle(self) -> bool:
        """Whether no caller waits and no caller has a record."""
        session = self._at.session
        return not (self._waiting or self._settling or any(at.session == session for at in self._leases.values()))

    def leave(self) -> None:
        """End the session."""
        self.leader.detach(self._at, by_worker=True, leave=True)
        self.over = True

    async def take(self, wait_s: float, clock: Clock) -> Leased | None:
        """Lease the next record; None: none came within `wait_s`. Raises NotLeader, NotReady, UnknownGroup."""
        if len(self._waiting) >= WAITING_MAX:
            raise NotReady(f"{WAITING_MAX} callers wait for records of group {self.leader.name!r} already")
        arrival: asyncio.Future[Leased] = asyncio.get_running_loop().create_future()
        self._waiting[arrival] = None
        self._ask()
        if self.leader.leases.may_have_work(self.leader.partition.high_watermark):
            wait_s = max(wait_s, GRACE_S)
        try:
            return await within(clock, arrival, wait_s, DeadlineExceeded("no record came"))
        except DeadlineExceeded:
            return None
        except asyncio.CancelledError:
            if arrival.done() and not arrival.cancelled() and arrival.exception() is None:
                self.give_back(arrival.result().grant)  # the record arrived just as the caller was cancelled
            raise
        finally:
            self._waiting.pop(arrival, None)
            self._ask()

    async def settle(self, verb: Verb, grant: Grant, delay_ms: int | None, error: str, now_s: float) -> float:
        """Carry out a settlement, and return the seconds that are left of the lease. A repeat changes nothing.

        Raises LeaseLost, OutcomeUnknown, and NotReady while another settlement of the record is under way.
        """
        if grant.term < self.leader.term:
            self.leader.leases.confirm(self._at.session, grant, now_s)  # the new leader does not know the lease yet
        self._requests += 1
        answer: asyncio.Future[list[Refused]] = asyncio.get_running_loop().create_future()
        self._settling[self._requests] = answer
        self.leader.settle(self._at, self._requests, verb, [grant], delay_ms, error)
        self.leader.pump()
        for refused in await answer:
            if not (isinstance(refused.error, LeaseLost) and self._is_done(verb, grant)):
                raise refused.error
        lease = self._leases.get(grant.offset)
        return max(0.0, lease.until_s - now_s) if lease is not None else 0.0

    def give_back(self, grant: Grant) -> None:
        """End a lease without a charge: the caller did not get the record."""
        lease = self._leases.get(grant.offset)
        if lease is not None and lease.grant is grant:
            self.leader.leases.take_back(grant.offset)
            self.leader.pump()

    @property
    def _leases(self) -> dict[int, Lease]:
        return self.leader.leases.leases

    def _is_done(self, verb: Verb, grant: Grant) -> bool:
        """Whether an earlier settlement of this grant already had the same effect."""
        group = self.leader.partition.state.queue_groups.by_name.get(self.leader.name)
        if group is None or grant.era != self.leader.leases.era or verb not in (Verb.NACK, Verb.REJECT):
            return False
        failure = group.failures.get(grant.offset)
        needed = grant.delivery | (REJECTED if verb is Verb.REJECT else 0)
        return grant.offset in group.burials or (failure is not None and failure.deliveries >= needed)

    def _ask(self) -> None:
        """Have the leader grant one record for each caller that waits."""
        if not self.over:
            self._at.credit_records = self._at.sent_records + len(self._waiting)
            self.leader.pump()

    # ---- WorkerPort

    @property
    def heard_s(self) -> float:
        """The present time: this worker is in the leader's own process, and never silent."""
        return self._workers.now_s()

    def attached(self, attachment: int, answer: Attached) -> None:
        """Do nothing: a new worker holds no records."""

    def granted(
        self, attachment: int, grants: Sequence[Grant], batches: Sequence[GrantedBatch], size: int, left_s: float
    ) -> None:
        place = 0
        for grant in grants:
            while grant.offset >= batches[place].base_offset + batches[place].record_count:
                place += 1
            arrival = next((waits for waits in self._waiting if not waits.done()), None)
            if arrival is None:  # the caller stopped waiting while the record was read
                self.give_back(grant)
                continue
            del self._waiting[arrival]
            self.leader.settle(self._at, 0, Verb.START, [grant], None, "")
            arrival.set_result(Leased(grant, batches[place], left_s))

    def settled(self, attachment: int, request_id: int, refused: Sequence[Refused]) -> None:
        answer = self._settling.pop(request_id, None)
        if answer is not None and not answer.done():
            answer.set_result(list(refused))

    def asked(self, attachment: int, grants: Sequence[Grant]) -> None:
        """End the leases, because the caller has no stream on which it could be asked."""
        for grant in grants:
            self.leader.settle(self._at, 0, Verb.EXPIRE, [grant], 0, "")

    def revoked(self, attachment: int, grants: Sequence[Grant], error: TinymqError) -> None:
        """Do nothing: a caller learns of the lost lease when it settles the record."""

    def ended(self, attachment: int, error: TinymqError | None) -> None:
        self.over = True
        for arrival in self._waiting:
            if not arrival.done():
                arrival.set_exception(error or NotReady("the group is led anew"))
        for answer in self._settling.values():
            if not answer.done():
                answer.set_exception(OutcomeUnknown("the leader changed before the settlement was committed"))
        self._settling.clear()


class UnaryWorkers:
    """The unary workers of one broker."""

    def __init__(self, workers: Workers, clock: Clock, rng: random.Random) -> None:
        self.clock = clock
        self._workers = workers
        self._rng = rng
        self._by_group: dict[tuple[GroupId, str], UnaryWorker] = {}

    def of(self, partition: Partition, group: str, group_id: int) -> UnaryWorker:
        """The worker of a group in a partition. Raises NotLeader, NotReady, UnknownGroup, WrongKind."""
        key = partition.group.id, group
        found = self._by_group.get(key)
        if found is not None:
            found.leader.check()
        if found is None or found.over or found.leader.group_id != group_id:
            found = UnaryWorker(self._workers, partition, group, group_id, self._rng.randbytes(SESSION_BYTES))
            self._by_group[key] = found
            self._look_later(key, found)
        return found

    def _look_later(self, key: tuple[GroupId, str], worker: UnaryWorker) -> None:
        """Check the worker every `session_s` seconds, and end its session when it is idle then."""

        def look() -> None:
            if not worker.over and worker.is_idle:
                worker.leave()
            if not worker.over:
                self._look_later(key, worker)
            elif self._by_group.get(key) is worker:
                del self._by_group[key]

        self.clock.call_later(worker.leader.settings.session_s, look)
