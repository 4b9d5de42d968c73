"""One queue group in one partition that this broker leads: attachments, grants, and commands in the log.

`QueueLeases` decides. This object gives it the time and the applied state, appends its proposals, one entry at a time,
and sends the records that it grants. It ends when the broker loses the leadership, or when the group is deleted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence

from tinymq.base.clock import Clock
from tinymq.base.errors import Fenced, LeaseLost, NotReady, OutcomeUnknown, SessionEnded, TinymqError, UnknownGroup
from tinymq.base.meter import Meter
from tinymq.broker.groups.lease_values import Era, Grant, Proposal, QueueSettings, SettlementResult, has_settled
from tinymq.broker.groups.queue_leases import QueueLeases
from tinymq.broker.partition.partition import Partition
from tinymq.broker.state.cursor import CursorKind
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.broker.work.applied_state import AppliedState
from tinymq.broker.work.attachment import Attached, Attachment, Refused, Settlement, Verb
from tinymq.broker.work.commands import command_of
from tinymq.broker.work.deliveries import Deliveries
from tinymq.broker.work.granted_records import GrantedRecords
from tinymq.broker.work.key_reader import KeyReader
from tinymq.broker.work.last_failures import DeadRecord, LastFailures
from tinymq.broker.work.limits import GroupLimits, GroupShare, active_sessions
from tinymq.broker.work.transactional_jobs import TransactionalJobs
from tinymq.broker.work.windows import Blocked, Obstacle, full_window, has_room

COMMAND_S = 86_400.0  # practically no deadline: only the commit or a new leader decides the outcome of a command
GRANT_MAX = 1000  # records in one grant
GRANT_BYTES = 1 << 20  # bytes of records in one grant, estimated by the partition's average record


class GroupLeader:
    """One group in one partition, on the leader of one term."""

    def __init__(
        self, partition: Partition, name: str, group_id: int, settings: QueueSettings, *,
        records: GrantedRecords, clock: Clock, rng: random.Random, meter: Meter,
        on_dead: Callable[[GroupLeader], None],
    ) -> None:  # fmt: skip
        """`on_dead` is called while there are records to bury: after each commit, and with each `tick`."""
        self.partition = partition
        self.name = name
        self.group_id = group_id
        self.settings = settings
        self.limits = GroupLimits()
        self.share = GroupShare(clock.monotonic())
        self.version = 0  # of the registry's record that gave `settings` and `limits`
        self.term = partition.group.term
        self.over = False
        self.attachments: dict[bytes, Attachment] = {}  # by session; the next to be granted records is first
        self._clock = clock
        self._rng = rng
        self._meter = meter
        self._on_dead = on_dead
        self._applied = AppliedState(partition, name)
        self.leases = QueueLeases(self.term, self._applied, self._applied.history, settings, clock.monotonic())
        self.jobs = TransactionalJobs(partition, name, group_id, self.leases, self._applied, clock)
        self._keys = KeyReader(partition, records, self.pump)
        self._settlements: list[Settlement] = []  # their proposals go into the next entry
        self._proposals: list[Proposal] = []  # not appended yet; `_append` tries them again
        self._under_way = False  # whether commands are queued or appended, and not answered
        self._again = False  # whether `_pump_again` is scheduled
        self.failures = LastFailures()
        self._deliveries = Deliveries(
            partition, self.leases, records, clock, self.pump, lambda count: meter.expired(name, count)
        )
        partition.watch(self.pump)

    @property
    def is_idle(self) -> bool:
        """Whether this object has no state of its own, so that it can be dropped and made again later."""
        if self.over:
            return True
        group, leases = self._applied.group, self.leases
        known = self.attachments or leases.leases or leases.sessions or leases.waits or group.staged
        return not (known or group.sessions or group.failures or self._under_way or self._proposals)

    def configure(self, version: int, settings: QueueSettings, limits: GroupLimits) -> None:
        """Follow a change of the group's record. If granted leases cannot go on under the settings, end this object."""
        if not settings.agrees_with(self.settings):
            self.close(NotReady("the settings of the group have changed", hint="attach again"))
            return
        self.version, self.settings, self.limits = version, settings, limits
        self._deliveries.ttl_us = None if limits.message_ttl_ms is None else limits.message_ttl_ms * 1000
        self.leases.configure(settings)

    # ---- workers

    def attach(self, new: Attachment, held: Sequence[Grant]) -> None:
        """Attach a worker. Raises SessionEnded, NotReady."""
        now_s = self._clock.monotonic()
        self._follow_era()
        known = new.session in self._applied.group.sessions
        offsets = set(self.leases.attach(new.session, new.connection, held, now_s))
        lost = [grant for grant in held if grant.offset in offsets]
        older = self.attachments.pop(new.session, None)
        if older is not None:
            self._end(older, Fenced("the same session has attached again", hint="this attachment is over"))
        self.attachments[new.session] = new
        answer = Attached(
            term=self.term,
            era=self.leases.era,
            known=known,
            lost=lost,
            settled=[grant for grant in lost if has_settled(self._applied, self.leases.era, grant)],
            lease_s=self.settings.lease_s,
            session_s=self.settings.session_s,
            rejoin_s=self.settings.rejoin_s,
            keyed=self.settings.keyed,
        )
        new.port.attached(new.number, answer)
        self.pump()

    def detach(self, old: Attachment, *, by_worker: bool, leave: bool = False) -> None:
        """End an attachment. With `by_worker`, the worker closed it, and so starts no further record. With `leave`, the
        session ends at once, because the worker does not come back."""
        if old.over:
            return
        old.over = True
        del self.attachments[old.session]
        self.leases.close(old.session, old.connection, by_worker, self._clock.monotonic())
        if leave and old.session in self.leases.sessions:
            self.leases.end_session(old.session)
        self.pump()

    def settle(
        self, at: Attachment, request_id: int, verb: Verb, grants: Sequence[Grant], delay_ms: int | None, error: str
    ) -> None:
        """Carry out one settlement, and answer it unless the attachment ends before."""
        now_s = self._clock.monotonic()
        lost: list[Grant] = []
        later: list[Grant] = []
        proposed: dict[int, Grant] = {}
        for grant in grants:
            verdict = self._settle_one(at, verb, grant, delay_ms, now_s)
            if verdict is SettlementResult.PROPOSED:
                proposed[grant.offset] = grant
                if verb is Verb.ACK:
                    self.failures.forget(grant.offset)
                else:
                    self.failures.note_verb(verb, grant, error, at.worker, self.partition.group.append_time_now_us())
            elif verdict is SettlementResult.LOST:
                lost.append(grant)
            elif verdict is SettlementResult.LATER:
                later.append(grant)
        refused = [Refused(_lost(self), lost)] if lost else []
        if later:
            refused.append(Refused(NotReady("another settlement of these records is under way"), later))
        settlement = Settlement(at, request_id, refused, proposed)
        if proposed:
            self._settlements.append(settlement)
        else:
            settlement.answer()

    def _settle_one(
        self, at: Attachment, verb: Verb, grant: Grant, delay_ms: int | None, now_s: float
    ) -> SettlementResult:
        leases, session, connection = self.leases, at.session, at.connection
        if verb is Verb.ACK:
            return leases.ack(session, connection, grant, now_s)
        if verb is Verb.NACK or verb is Verb.EXPIRE:
            delay = self.settings.delay_ms(grant.delivery, self._rng.random()) if delay_ms is None else delay_ms
            return leases.nack(session, connection, grant, delay, now_s)
        if verb is Verb.REJECT:
            return leases.reject(session, connection, grant, now_s)
        if verb is Verb.RELEASE:
            return leases.release(session, connection, grant, now_s)
        return leases.extend(session, connection, grant, verb is Verb.START, now_s)

    # ---- what is to be done now

    def pump(self) -> None:
        """Do all that can be done now: follow the state, grant records, append proposals. Runs after each commit."""
        if self.over:
            return
        gone = self._gone()
        if gone is not None:
            self.close(gone)
            return
        self._follow_era()
        self.jobs.follow()
        self._grant_all()
        self._append()

    def tick(self) -> None:
        """Act on the time: end silent sessions and expired leases, and grant records whose delay has passed."""
        self.check()
        if self.over:
            return
        now_s = self._clock.monotonic()
        for at in self.attachments.values():
            known = self.leases.sessions.get(at.session)
            if known is not None and at.port.heard_s > known.heard_s:
                self.leases.hear(at.session, at.connection, at.port.heard_s)
        expiry = self.leases.expire(now_s)
        for asked, grants in self._by_worker(expiry.asked):
            asked.port.asked(asked.number, grants)
        for worker, grants in self._by_worker(expiry.freed):
            worker.port.revoked(worker.number, grants, LeaseLost("the lease ran out before the job was begun"))
        for at in list(self.attachments.values()):
            if at.session not in self.leases.sessions:
                self._end(at, SessionEnded("the worker was silent for too long"))
        self.pump()
        self.jobs.tick()
        if self.leases.dead:
            self._on_dead(self)

    def close(self, error: TinymqError) -> None:
        """End all attachments: this broker does not lead the group any more."""
        if self.over:
            return
        self.over = True
        self.partition.unwatch(self.pump)
        for at in list(self.attachments.values()):
            self._end(at, error)
        self._deliveries.close()
        self._keys.close()
        self.jobs.close()

    def check(self) -> None:
        """End this object if its leadership or its group is gone. Either may exist again, under a newer term or id."""
        gone = None if self.over else self._gone()
        if gone is not None:
            self.close(gone)

    def _gone(self) -> TinymqError | None:
        """Why this object has to end; None: it goes on."""
        partition = self.partition
        if partition.closed is not None:
            return partition.closed
        if not partition.leading or partition.group.term != self.term:
            return partition.not_leader()
        cursor = partition.state.cursors.get(self.name)
        if cursor is None or cursor.kind != CursorKind.QUEUE or cursor.group_id != self.group_id:
            return UnknownGroup(f"group {self.name!r} was deleted")
        return None

    def _end(self, at: Attachment, error: TinymqError) -> None:
        if not at.over:
            at.over = True
            if self.attachments.get(at.session) is at:
                del self.attachments[at.session]
            at.port.ended(at.number, error)

    def _follow_era(self) -> None:
        """Tell the workers that their grants are over, if a seek or a loss of records has begun a new era."""
        era = Era(self._applied.history, self._applied.group.generation)
        if era == self.leases.era:
            return
        self.failures.clear()
        for at, grants in self._by_worker(self.leases.begin_era(era.history)):
            at.port.revoked(at.number, grants, LeaseLost("a seek has moved the group"))

    def _by_worker(self, found: Iterable[tuple[bytes, Grant]]) -> list[tuple[Attachment, list[Grant]]]:
        """The grants of each session that is attached."""
        grants: dict[bytes, list[Grant]] = {}
        for session, grant in found:
            grants.setdefault(session, []).append(grant)
        return [(self.attachments[session], grants[session]) for session in grants if session in self.attachments]

    # ---- grants

    def _grant_all(self) -> None:
        """Grant records to the workers in turns, so that each gets some."""
        partition = self.partition
        if self.limits.paused or not self.attachments or not self.leases.may_have_work(partition.high_watermark):
            return
        size = partition.state.kept_bytes // max(1, partition.state.kept_records)
        most_at_once = max(1, min(GRANT_MAX, GRANT_BYTES // max(1, size)))
        self._keys.read_on(self.leases.keys)
        again, active = False, self._active()
        for at in [at for at in self.attachments.values() if active is None or at.session in active]:
            share = self.share.most(self.jobs.taken, self._clock.monotonic())
            most = min(most_at_once, at.most(size))
            # A worker whose credit is smaller than one record would otherwise never get any.
            if not most and at.lacks_bytes_only and not self._holds(at.session):
                most = 1
            most = most if share is None else min(most, share)
            if granted := self._grant(at.session, most) if most else []:
                self.share.granted(len(granted))
                self.attachments[at.session] = self.attachments.pop(at.session)  # to the end of the queue
                self._meter.redelivered(self.name, sum([grant.delivery > 1 for grant in granted]))
                self._deliveries.send(at, granted)
                # There may be more for it if it got all that it was allowed, or a record that is granted alone.
                again = again or (len(granted) == most and at.most(size) > 0) or granted[0].started
        if again and not self._again:  # go on in a later turn of the loop, so that it serves others in between
            self._again = True
            asyncio.get_running_loop().call_soon(self._pump_again)

    def _pump_again(self) -> None:
        self._again = False
        self.pump()

    def _active(self) -> set[bytes] | None:
        """The sessions of the workers that may be granted records; None: all workers may."""
        if self.limits.max_members is None:
            return None
        holding = {lease.session for lease in self.leases.leases.values()} | self.leases.absent
        return active_sessions(self._applied.group.sessions, self.attachments, holding, self.limits.max_members)

    def _holds(self, session: bytes) -> bool:
        return any(lease.session == session for lease in self.leases.leases.values())

    def _grant(self, session: bytes, most: int) -> list[Grant]:
        partition = self.partition
        return self.leases.grant(
            session,
            most,
            partition.high_watermark,
            partition.group.append_time_now_us(),
            self._clock.monotonic(),
            has_room=self._has_room,
        )

    @property
    def _has_room(self) -> bool:
        return has_room(self._applied.group, len(self.partition.state.queue_groups.by_name))

    @property
    def blocked(self) -> Blocked | None:
        """Why the group grants nothing more although there may be records; None: nothing hinders it."""
        if not self.leases.may_have_work(self.partition.high_watermark):
            return None
        if self.limits.paused:
            return Blocked(Obstacle.PAUSED, "the group is paused")
        leased, share = self.jobs.taken, self.share.concurrency_max
        if share is not None and leased >= share:
            return Blocked(Obstacle.WINDOW_FULL, f"{leased} records are leased: concurrency_max")
        return full_window(self.leases, self._applied.group, self.settings, has_room=self._has_room)

    # ---- the log

    def _append(self) -> None:
        """Append the proposals. While earlier commands are under way they wait, and then share one entry."""
        if self._under_way:
            return
        proposals = self._proposals + self.leases.take_proposals()
        if not proposals:
            return
        self.failures.note_charges(proposals, self.partition.group.append_time_now_us())
        settlements, self._settlements = self._settlements, []
        commands = [command_of(proposal, self.name, self.group_id) for proposal in proposals]
        self._proposals, self._under_way = [], True

        def done(outcomes: list[CommandOutcome] | TinymqError) -> None:
            self._under_way = False
            self._appended(proposals, settlements, outcomes)

        try:
            self.partition.command(commands, COMMAND_S, done)
        except TinymqError as error:
            done(error)

    def _appended(
        self, proposals: list[Proposal], settlements: list[Settlement], outcomes: list[CommandOutcome] | TinymqError
    ) -> None:
        if self.over:
            return
        if isinstance(outcomes, TinymqError):
            gone = self._gone()
            if gone is not None or isinstance(outcomes, OutcomeUnknown):
                self.close(gone or self.partition.not_leader())
            else:  # nothing was appended: the next tick tries again
                self._proposals, self._settlements = proposals, settlements + self._settlements
            return
        refused: list[range] = []
        for proposal, outcome in zip(proposals, outcomes, strict=True):
            if outcome.error is not None:
                refused += [range(offset, offset + 1) for offset in proposal.blocked]
                self._refused(proposal, outcome.error)
            refused += [range(start, end) for start, end in outcome.refused]
            self.leases.applied(proposal)
        for settlement in settlements:
            lost = [g for g in settlement.proposed.values() if refused and any(g.offset in span for span in refused)]
            if lost:
                settlement.refused.append(Refused(_lost(self), lost))
            settlement.answer()
        if self.leases.dead:
            self._on_dead(self)
        # No call of `pump` here: it watches the partition, and runs after this entry anyway.

    def _refused(self, proposal: Proposal, error: TinymqError) -> None:
        at = self.attachments.get(proposal.opens) if proposal.opens else None
        if at is not None:  # the session was refused, because the group has too many
            self._end(at, error)

    # ---- dead records

    def dead(self) -> list[DeadRecord]:
        """The dead records whose burial has not begun, the oldest first."""
        return [DeadRecord.of(offset, known, self.failures.get(offset)) for offset, known in self.leases.take_dead()]


def _lost(leader: GroupLeader) -> LeaseLost:
    return LeaseLost(f"{leader.partition}: group {leader.name!r} has not these records leased to this worker")
