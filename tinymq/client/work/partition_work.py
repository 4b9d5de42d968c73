"""A worker's place at one partition: what it holds, what it has settled, and what it says to the leader. No I/O.

The loop calls everything here. An application's thread only pops jobs, and adds settlements to the worker's list.

- A settlement is sent again until it has an answer; a job with such a settlement is listed when the worker attaches.
- Grants of another attachment, or of a lower term than the attachment's, are dropped.
- A job is begun only while no other worker can have its record: the leader has answered lately, and the worker has
  extended the lease (adr/0128).
- With keyed order, one job of a key is out at a time. After a nack, a reject or a loss, its others are given back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinymq.base.errors import CorruptData, LeaseLost, SessionEnded, TinymqError
from tinymq.client.cluster.routing import Topic
from tinymq.client.consume.records import Chunk
from tinymq.client.net.wire import read_error
from tinymq.client.work.confirmation import Confirmation
from tinymq.client.work.grants import Grant, Verb, read_grants, write_grants
from tinymq.client.work.job import IN_HAND, UNSTARTED, Job, JobState
from tinymq.format.batch import BatchLimits, decode_batch
from tinymq.format.entry import crc32c
from tinymq.proto import tinymq_pb2 as pb

if TYPE_CHECKING:
    from tinymq.client.work.transactional_jobs import TransactionalWorker

FINAL = (Verb.ACK, Verb.NACK, Verb.REJECT, Verb.RELEASE)


@dataclass(slots=True)
class JobSettlement:
    """One verb for several jobs, sent as one request."""

    verb: Verb
    jobs: list[Job]
    delay_s: float | None = None
    error: str = ""


@dataclass(slots=True)
class Credit:
    """How much a partition's leader may grant at once."""

    records: int
    bytes: int


class PartitionWork:
    """One partition. `outbox` has what is to be sent to the leader that it is attached to."""

    def __init__(
        self,
        topic: Topic,
        partition: int,
        group: str,
        group_id: int,
        credit: Credit,
        limits: BatchLimits,
        max_handler_s: float,
        new_session: Callable[[], bytes],
        settle: Callable[[Job, Verb, float | None, str], None],
        wait: Callable[[Job, float | None], Awaitable[None]],
        lost: Callable[[Job, TinymqError], None],
        worker: TransactionalWorker,
    ) -> None:
        """`settle` is given to the jobs, and `wait` waits for the answer to a job's ack. `lost` is called with each job
        that was in hand or settled and that another worker may have now. `worker` is for transactions."""
        self.topic = topic
        self.partition = partition
        self.attachment = 0  # 0: none
        self.attached = False  # the leader has answered
        self.leaving = False  # the attachment is about to end: no further job is begun
        self.term = 0
        self.keyed = False
        self.confirmation = Confirmation()
        self.held: dict[int, Job] = {}  # by offset
        self.parked: deque[Job] = deque()  # taken from the worker's jobs when they could not be begun
        self.settling: dict[int, JobSettlement] = {}  # by request id: sent, and not answered
        self.unsent: list[JobSettlement] = []
        self.new: list[Job] = []  # to be handed out; the worker takes them
        self._group = group
        self._group_id = group_id
        self._window = credit
        self._limits = limits
        self._max_handler_s = max_handler_s
        self._new_session = new_session
        self._session = new_session()
        self._settle = settle
        self.wait = wait
        self.worker = worker
        self._lost = lost
        self._credit = credit  # of this attachment, in all
        self._credit_due = False
        self._keys: dict[bytes, deque[Job]] = {}  # by the key of a job that is out: the jobs that wait for it
        self._stopped = False
        self._attached_s = 0.0  # when this attachment was sent

    # ---- beginning jobs ---------------------------------------------------------------------------------------

    def begins(self, job: Job, now_s: float) -> bool:
        """May the job be begun now? If not, it is parked."""
        return self.is_confirmed(now_s) and not self._is_overdue(job, now_s)

    def is_confirmed(self, now_s: float) -> bool:
        """Whether what the worker holds is certainly still its own."""
        return self.attached and not self.leaving and self.confirmation.is_valid(now_s)

    def _is_overdue(self, job: Job, now_s: float) -> bool:
        """Whether the job has run for so long that the worker no longer extends its lease."""
        return now_s - job._since_s >= self._max_handler_s

    def asks(self, now_s: float) -> bool:
        """Whether jobs wait for a sign that the leader is there."""
        return bool(self.parked) and self.attached and not self.is_confirmed(now_s)

    def resume(self, now_s: float) -> list[Job]:
        """The parked jobs that may be begun now. Jobs whose leases are no longer extended are given back."""
        ready, overdue = [], []
        for _ in range(len(self.parked)):
            job = self.parked.popleft()
            if job._state is not JobState.WAITING:
                continue
            if self._is_overdue(job, now_s):
                job._state = JobState.RELEASED
                overdue.append(job)
            elif self.is_confirmed(now_s):
                ready.append(job)
            else:
                self.parked.append(job)
        if overdue:
            self.settle(JobSettlement(Verb.RELEASE, overdue))
        return ready

    # ---- attaching --------------------------------------------------------------------------------------------

    def attach(self, attachment: int, now_s: float) -> pb.WorkAttach:
        """Begin a new attachment, and return the message that asks the leader for it."""
        self.attachment, self.attached, self._attached_s = attachment, False, now_s
        unanswered = [each for each in self.settling.values() if each.verb in FINAL]
        self.settling.clear()
        self.unsent = [*unanswered, *self.unsent]
        waiting = [job.grant for job in self.held.values() if job._state in UNSTARTED]
        started = [job.grant for job in self.held.values() if job._state not in UNSTARTED]
        self._credit = Credit(self._window.records, self._window.bytes)
        for job in self.held.values():
            if not job._freed:
                self._credit.records -= 1
                self._credit.bytes -= job._bytes
        self._credit = Credit(max(0, self._credit.records), max(0, self._credit.bytes))
        if self._stopped:
            self._credit = Credit(0, 0)
        return pb.WorkAttach(
            attachment=attachment,
            topic_id=self.topic.topic_id,
            partition=self.partition,
            group=self._group,
            group_id=self._group_id,
            session=self._session,
            held=write_grants(waiting),
            started=write_grants(started),
            credit_records=self._credit.records,
            credit_bytes=self._credit.bytes,
            term=self.term,
        )

    def detached(self) -> None:
        """The stream broke, or the leader ended the attachment. Jobs stay held until the next attachment lists them."""
        self.attachment, self.attached, self.leaving = 0, False, False

    def on_attached(self, reply: pb.WorkAttached) -> None:
        self.term = max(self.term, reply.term)
        self.keyed = reply.keyed
        self.confirmation.on_attached(reply, self._attached_s)
        self.attached = True
        for grants in reply.settled:  # before the jobs that were lost without an answer are dropped
            for job in self._jobs_of(read_grants(grants)):
                if self.is_answered(job):
                    self._done(job)
        if not reply.known:
            self._drop(list(self.held.values()), LeaseLost("the partition does not know this worker's session"))
        for grants in reply.lost:
            self.on_lost(grants, LeaseLost("the lease was lost while the worker was not attached"))

    def is_answered(self, job: Job) -> bool:
        """Whether an attachment that calls the job's record settled answers what the job's application asked for.

        It answers an ack that was sent. A job in hand is lost, because another worker has settled its record. A job
        with a nack is lost, too: its nack did not count.
        """
        return job._ack_sent

    def on_ended(self, error: TinymqError) -> None:
        """The leader ended the attachment."""
        self.detached()
        if isinstance(error, SessionEnded):
            self._session = self._new_session()
            # The next attachment lists acks without an answer, and is told which of them had succeeded.
            self._drop([job for job in self.held.values() if not job._ack_sent], LeaseLost(error.message))

    # ---- grants -----------------------------------------------------------------------------------------------

    def on_granted(self, granted: pb.WorkGranted, now_s: float) -> None:
        """Make jobs of the records. Raises CorruptData."""
        grants = {grant.offset: grant for grant in read_grants(granted.grants) if self.is_current(grant)}
        size = granted.bytes // max(1, len(grants))
        for batch in granted.batches:
            if crc32c(batch.payload) != batch.payload_crc:
                raise CorruptData("a payload's checksum does not match", partition=self.partition)
            rows = decode_batch(batch.payload, self._limits)
            chunk = Chunk(self.partition, batch.base_offset, self.term, rows, len(batch.payload))
            for message in chunk.messages(self.topic.name):
                grant = grants.pop(message.offset, None)
                if grant is None:
                    continue
                older = self.held.get(message.offset)
                if older is not None and older.grant[3:5] >= grant[3:5]:
                    continue
                if older is not None:
                    self._drop([older], LeaseLost("the record was granted again"))
                job = Job(message, grant, self, self._settle, size)
                job._since_s = now_s
                self.held[message.offset] = job
                self._offer(job)

    def is_current(self, grant: Grant) -> bool:
        """Whether the leader that the worker is attached to, or a later one, may have granted this."""
        return grant.term >= self.term

    def _offer(self, job: Job) -> None:
        key = job.message.key
        if self.keyed and key is not None:
            waiting = self._keys.get(key)
            if waiting is not None:
                waiting.append(job)
                return
            self._keys[key] = deque()
        self.new.append(job)

    def _key_is_free(self, job: Job, *, settled: bool) -> None:
        """The job of a key is settled, or is not ours any more (`settled` is False).

        After a settlement, offer the key's next job. Otherwise give back all jobs that wait for the key.
        """
        key = job.message.key
        waiting = self._keys.pop(key, None) if self.keyed and key is not None else None
        if not waiting:
            return
        if settled:
            self._offer(waiting.popleft())
            assert key is not None, "it has a queue"
            self._keys[key] = waiting
        else:
            for each in waiting:
                each._state = JobState.RELEASED
            self.unsent.append(JobSettlement(Verb.RELEASE, list(waiting)))

    def on_lost(self, grants: pb.Grants, error: TinymqError) -> None:
        """Grants that the worker does not hold any more."""
        self._drop(self._jobs_of(read_grants(grants)), error)

    def _jobs_of(self, grants: Iterable[Grant]) -> list[Job]:
        found = ((grant, self.held.get(grant.offset)) for grant in grants)
        return [job for grant, job in found if job is not None and job.grant == grant]

    def _drop(self, jobs: Iterable[Job], error: TinymqError) -> None:
        for job in jobs:
            if self.held.pop(job.grant.offset, None) is None:
                continue
            before, job._loss = job._state, error
            job._state = JobState.LOST if before is not JobState.STAGED else before  # the transaction reports the loss
            self._free(job)
            self._key_is_free(job, settled=False)
            if before not in (JobState.WAITING, JobState.RELEASED, JobState.STAGED):
                self._lost(job, error)
            if job._answer is not None:
                job._answer.give(error)

    def _done(self, job: Job) -> None:
        """The settlement of a job has succeeded."""
        del self.held[job.grant.offset]
        if job._answer is not None:
            job._answer.give(None)

    def holds(self, job: Job) -> bool:
        """Whether the job waits, is in hand, or has a settlement without an answer."""
        return self.held.get(job.grant.offset) is job

    def stop(self, jobs: Iterable[Job]) -> None:
        """Give back jobs that were not handed out, and those that wait for their key, and ask for no others."""
        self._stopped = True
        waiting = [job for line in self._keys.values() for job in line]
        for line in self._keys.values():
            line.clear()
        returned = [job for job in (*jobs, *waiting) if job._state is JobState.WAITING]
        for job in returned:
            job._state = JobState.RELEASED
        if returned:
            self.unsent.append(JobSettlement(Verb.RELEASE, returned))

    def _free(self, job: Job) -> None:
        if not job._freed and not self._stopped:
            job._freed = True
            self._credit.records += 1
            self._credit.bytes += job._bytes
            self._credit_due = True

    # ---- settlements ------------------------------------------------------------------------------------------

    def settle(self, settlement: JobSettlement) -> None:
        """Send this to the leader, now or after the next attachment."""
        self.unsent.append(settlement)
        if self.keyed and settlement.verb in FINAL:
            for job in settlement.jobs:
                self._key_is_free(job, settled=settlement.verb is Verb.ACK)

    def requests(self, next_id: Callable[[], int]) -> tuple[list[pb.WorkSettle], list[pb.WorkCredit]]:
        """The messages to send now; none while the partition is not attached."""
        if not self.attached:
            return [], []
        settles = []
        unsent, self.unsent = self.unsent, []
        for settlement in unsent:
            jobs = [job for job in settlement.jobs if self.holds(job)]
            final = settlement.verb in FINAL
            messages = write_grants([job.grant for job in jobs])
            count = len(messages)
            for grants in messages:
                request_id = 0
                if final:
                    request_id = next_id()
                    part = jobs if count == 1 else self._jobs_of(read_grants(grants))
                    self.settling[request_id] = JobSettlement(
                        settlement.verb, part, settlement.delay_s, settlement.error
                    )
                delay_ms = None if settlement.delay_s is None else round(settlement.delay_s * 1000)
                settles.append(
                    pb.WorkSettle(
                        attachment=self.attachment,
                        request_id=request_id,
                        verb=settlement.verb.value,  # type: ignore[arg-type]
                        grants=grants,
                        delay_ms=delay_ms,
                        error=settlement.error,
                    )
                )
            if final:
                for job in jobs:
                    job._ack_sent = job._ack_sent or settlement.verb is Verb.ACK
                    self._free(job)  # the next record may be on its way while the leader commits
        credits = []
        if self._credit_due:
            self._credit_due = False
            credits.append(
                pb.WorkCredit(attachment=self.attachment, records=self._credit.records, bytes=self._credit.bytes)
            )
        return settles, credits

    def on_settled(self, reply: pb.WorkSettled) -> None:
        """Take the answer to a settlement: every job that the leader did not refuse is settled."""
        settlement = self.settling.pop(reply.request_id, None)
        if settlement is None:
            return
        again: list[Job] = []
        for refused in reply.refused:
            error = read_error(refused.error)
            jobs = self._jobs_of(read_grants(refused.grants))
            if error.retriable:
                again += jobs
            else:
                self._drop(jobs, error)
        if again:
            self.unsent.append(JobSettlement(settlement.verb, again, settlement.delay_s, settlement.error))
        kept = set(map(id, again))
        for job in settlement.jobs:
            if id(job) not in kept and self.holds(job):
                self._done(job)

    def keep(self, now_s: float) -> None:
        """Extend what is held and not settled, for at most `max_handler_s` since it was granted or handed out."""
        jobs = [
            job
            for job in self.held.values()
            if (job._state in (JobState.WAITING, JobState.STAGED) or job._state in IN_HAND)
            and not self._is_overdue(job, now_s)
        ]
        if jobs:
            self.unsent.append(JobSettlement(Verb.EXTEND, jobs))

    def on_asked(self, grants: pb.Grants, now_s: float) -> None:
        """The leader asks about records whose lease has ended: extend it if they are still in hand."""
        jobs = [job for job in self._jobs_of(read_grants(grants)) if not self._is_overdue(job, now_s)]
        if jobs:
            self.unsent.append(JobSettlement(Verb.EXTEND, jobs))

    @property
    def unanswered(self) -> bool:
        """Whether a settlement has no answer yet."""
        unsent = (each for each in self.unsent if each.verb in FINAL)
        return bool(self.settling) or any(self.holds(job) for each in unsent for job in each.jobs)
