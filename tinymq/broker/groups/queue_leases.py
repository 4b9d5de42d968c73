"""The leases of one queue group in one partition, as the leader of one term has them. Pure: the time is given.

Leases are in memory, so a grant appends no entry. The leader proposes what has to outlive it: the ids of sessions, the
mark below which records may have been granted, settlements and charges. It grants a record only below the applied
mark, and only to a session that is applied. So the next leader knows every worker that it has to wait for, and every
record that those workers may hold.

A record is in one state: settled, staged, being buried, leased, in an unapplied proposal, delayed, or free.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from tinymq.base.errors import SessionEnded
from tinymq.broker.groups.dead_records import DeadRecords
from tinymq.broker.groups.key_order import KeyOrder
from tinymq.broker.groups.lease_expiry import Expiry, expire_leases
from tinymq.broker.groups.lease_proposals import LeaseProposals
from tinymq.broker.groups.lease_values import (
    AppliedQueue,
    Era,
    Grant,
    Lease,
    Proposal,
    QueueSettings,
    Session,
    SettlementResult,
)
from tinymq.broker.state.queue_group import REJECTED, Charge, Failure, QueueGroup

MARK_STEP = 1000  # records by which the mark rises at a time
ALONE_RETURNS = 3  # after as many sessions died holding a record, it is granted alone: it may be what kills workers
HOLD_S_MAX = 12 * 3600.0  # longest time from a grant to the end of its last extension


class QueueLeases:
    """The leases of one group, from the moment that the leader has applied the first entry of its own term."""

    def __init__(self, term: int, applied: AppliedQueue, history: int, settings: QueueSettings, now_s: float) -> None:
        """`history` is the term of the log's newest recovery."""
        group, position = applied.group, applied.position
        self.term = term
        self.era = Era(history, group.generation)
        self.leases: dict[int, Lease] = {}  # by offset
        self.sessions: dict[bytes, Session] = {}
        self.dead = DeadRecords(settings.deliveries_max)
        self._proposals = LeaseProposals()
        self._applied = applied
        self._settings = settings
        self._number = 0  # number of the newest grant
        self._opening: set[bytes] = set()
        self._ending: set[bytes] = set()
        self._mark_proposed = group.granted_below
        self._free: list[int] = []  # heap of offsets that may be free: `_take` checks each again
        self._waiting: list[tuple[int, int]] = []  # heap of (append time from which it may be granted, offset)
        # Any record below the last leader's mark may be leased: which ones is known once every worker has attached.
        self._unknown_from, self._unknown_below = position, max(position, group.granted_below)
        self.absent = set(group.sessions)
        self._rejoin_until_s = now_s + settings.rejoin_s
        self.keys = KeyOrder(position) if settings.keyed else None
        # The first record that no leader has granted; with keyed order, the first that this leader has not entered.
        self._next = position if settings.keyed else self._unknown_below
        self.dead.note(group.failures, group)
        self.end_wait(now_s)

    @property
    def waits(self) -> bool:
        """Whether records below the last leader's mark still wait for workers that have not attached."""
        return self._unknown_below > self._unknown_from

    def configure(self, settings: QueueSettings) -> None:
        """Use other settings from now on. The caller has checked `agrees_with`."""
        self._settings, self.dead = settings, DeadRecords(settings.deliveries_max)
        self.dead.note(self._group.failures, self._group)
        for offset in self._group.failures:  # under a higher deliveries_max, some of them are not dead any more
            self.offer(offset)

    # ---- sessions

    def attach(self, session: bytes, connection: int, held: Iterable[Grant], now_s: float) -> list[int]:
        """Attach a worker that lists the grants it holds, including those whose settlement has no answer yet. Returns
        the offsets whose leases it has lost. Raises SessionEnded."""
        self.check_session(session)
        known = session in self._group.sessions
        if not known and session not in self._opening:
            self._opening.add(session)
            self.propose(Proposal(self.era, opens=session))
        self.sessions[session] = Session(connection, now_s)
        grants = {grant.offset: grant for grant in held}
        lost = [offset for offset, grant in grants.items() if not (known and self.confirm(session, grant, now_s))]
        for offset in [o for o, lease in self.leases.items() if lease.session == session and o not in grants]:
            self.take_back(offset)
        self.absent.discard(session)
        self.end_wait(now_s)
        return lost

    def check_session(self, session: bytes) -> None:
        """Raise SessionEnded if the end of the session is proposed: its records are about to be granted to others."""
        if session in self._ending:
            raise SessionEnded("this session ends: its worker was silent, or has left")

    def confirm(self, session: bytes, grant: Grant, now_s: float) -> bool:
        """Whether the worker holds this grant. A grant of an earlier leader becomes a lease of this leader."""
        offset, lease = grant.offset, self.leases.get(grant.offset)
        if grant.era != self.era or offset in self._proposals.pending or not self._is_open(offset):
            return False
        if lease is not None and lease.grant[1:3] >= grant[1:3]:
            return lease.session == session and lease.grant[1:3] == grant[1:3]
        if not (self.waits and self._unknown_from <= offset < self._unknown_below) or grant.term >= self.term:
            return False  # this leader never granted the record, or has ended its lease
        # Two workers list one record if the last leader took it from one for the other: the newer grant wins.
        self.leases[offset] = Lease(session, grant, now_s, now_s + self._settings.lease_s, grant.started)
        return True

    def hear(self, session: bytes, connection: int, now_s: float) -> bool:
        """Note a sign of life. Returns False if this is not the session's newest connection, or it never attached."""
        known = self.sessions.get(session)
        if known is None or known.connection != connection:
            return False
        known.heard_s = now_s
        return True

    def close(self, session: bytes, connection: int, by_worker: bool, now_s: float) -> None:
        """Note that a connection has ended. The session ends unless the worker attaches again within `rejoin_s`. A
        worker that closed the connection itself starts no further record, so its unstarted ones are free at once."""
        if not self.hear(session, connection, now_s):
            return
        self.sessions[session].closed_s = now_s
        if by_worker:
            for offset in [o for o, lease in self.leases.items() if lease.session == session and not lease.started]:
                self.take_back(offset)

    def end_session(self, session: bytes) -> None:
        """Propose the end of a session, with a charge for each record that it had started."""
        held = [(offset, lease) for offset, lease in self.leases.items() if lease.session == session]
        charges = tuple(Charge(offset, lease.grant.delivery, 0) for offset, lease in held if lease.started)
        returned = tuple(offset for offset, lease in held if not lease.started)
        for offset, _ in held:
            del self.leases[offset]
        self.sessions.pop(session, None)
        self.absent.discard(session)
        self._ending.add(session)
        self.propose(Proposal(self.era, ends=session, charges=charges, returned=returned))

    # ---- grants

    def grant(
        self, session: bytes, most: int, end: int, now_us: int, now_s: float, *, has_room: bool = True
    ) -> list[Grant]:
        """Grant up to `most` records below `end`, the high watermark, to an attached session. Without `has_room` for
        more replicated state, only records that take some of that state already are granted."""
        known = self.sessions.get(session)
        if known is None or known.closed_s is not None or not self.is_open(session) or self._is_silent(known, now_s):
            return []
        self.end_wait(now_s)
        if self.keys is not None and self.waits:
            return []  # a worker that has not attached yet may hold an earlier record of any key
        granted, group, position = list[Grant](), self._group, self._applied.position  # nothing is applied in this loop
        while len(granted) < most and len(self.leases) + len(group.staged) < self._settings.leased_max:
            offset = self._take(end, now_us, has_room, group, position)
            if offset is None:
                break
            failure = group.failures.get(offset)
            alone = failure is not None and failure.returns >= ALONE_RETURNS
            if alone and granted:
                heapq.heappush(self._free, offset)
                break
            self._number += 1
            delivery = 1 + (failure.deliveries if failure is not None else 0)
            new = Grant(offset, self.term, self._number, delivery, self.era, started=alone)
            self.leases[offset] = Lease(session, new, now_s, now_s + self._settings.lease_s, alone)
            granted.append(new)
            if alone:  # if this record kills its worker, no other record must be charged for that
                break
        return granted

    def _is_silent(self, known: Session, now_s: float) -> bool:
        """Whether the session is over, once this is proposed. Until then nothing is granted to it: after a leap of the
        clock, or a pause of this process, the grant would be lost at once."""
        return now_s >= known.heard_s + self._settings.session_s

    def is_open(self, session: bytes) -> bool:
        """Whether the session is in the applied state, so that the next leader waits for it, and is not ending."""
        return session in self._group.sessions and session not in self._ending

    def _take(self, end: int, now_us: int, has_room: bool, group: QueueGroup, position: int) -> int | None:
        """The next record that may be granted; None: there is none now."""
        while self._waiting and self._waiting[0][0] <= now_us:
            heapq.heappush(self._free, heapq.heappop(self._waiting)[1])
        while self._free and self._free[0] < end:
            offset = heapq.heappop(self._free)
            if self._is_free(offset, now_us, group, position):
                return offset
        if not has_room or len(group.failures) >= self._settings.waiting_max:
            return None  # records that wait for another delivery take all the room: begin no new one
        keys, held_max = self.keys, self._settings.held_max
        while self._next < (end if keys is None else min(end, keys.known_end)):
            if not self.may_grant(self._next) or (keys is not None and keys.held >= held_max):
                return None
            offset, self._next = self._next, self._next + 1
            if keys is not None:
                keys.enter(offset, not self.is_settled(offset))
            if self._is_free(offset, now_us, group, position):
                return offset
        return None

    def may_grant(self, offset: int) -> bool:
        """Whether the record lies below the applied mark. If not, this proposes a higher mark."""
        if not (may := offset < self._group.granted_below):
            self.raise_mark()
        return may

    def raise_mark(self) -> None:
        """Propose a mark above the next record, unless one is proposed already."""
        if self._mark_proposed <= self._next:
            self._mark_proposed = self._next + MARK_STEP
            self.propose(Proposal(self.era, granted_below=self._mark_proposed))

    def is_settled(self, offset: int) -> bool:
        """Whether the record is settled. A record that is being buried is not: later ones of its key wait for it."""
        return self._group.is_settled(offset, self._applied.position)

    def _is_open(self, offset: int) -> bool:
        return self._group.is_open(offset, self._applied.position)

    def _is_free(self, offset: int, now_us: int, group: QueueGroup, position: int) -> bool:
        if offset in self.leases or offset in self._proposals.pending or not group.is_open(offset, position):
            return False
        if self.waits and self._unknown_from <= offset < self._unknown_below:
            return False  # a worker that has not attached yet may hold it; `end_wait` offers it again
        if self.keys is not None and not self.keys.is_first(offset):
            return False  # it is offered again when the record before it is settled
        failure = group.failures.get(offset)
        if failure is not None and self.dead.is_dead(failure):
            return False  # it stays dead until it is buried, or a seek moves the group
        if failure is not None and failure.not_before_us > now_us:
            heapq.heappush(self._waiting, (failure.not_before_us, offset))
            return False
        return True

    def take_dead(self) -> list[tuple[int, Failure]]:
        """The dead records whose burial is not under way, the oldest first."""
        return [each for each in self.dead.take(self._group, self._is_open) if each[0] not in self._proposals.pending]

    @property
    def _group(self) -> QueueGroup:
        return self._applied.group

    def may_have_work(self, end: int) -> bool:
        """Whether a record below `end` may be free, now or later. Only False is certain."""
        return bool(self._next < end or self._free or self._waiting or self.waits)

    def take_back(self, offset: int) -> None:
        """End a lease without a charge, so that its record is free again."""
        del self.leases[offset]
        self.offer(offset)

    def settle_unseen(self, offset: int) -> None:
        """End the lease of a record that is too old to be sent, and settle the record."""
        del self.leases[offset]
        self.propose(Proposal(self.era, acks=(offset,)))

    def offer(self, offset: int) -> None:
        """Have `_take` look at a record again. It comes to those from `_next` on by itself, and checks the mark."""
        if offset < self._next:
            heapq.heappush(self._free, offset)

    def end_wait(self, now_s: float) -> None:
        """Free the records that no worker has listed, once all workers have attached or their time is up."""
        if not (self.waits or self.absent) or (self.absent and now_s < self._rejoin_until_s):
            return
        unknown = range(self._unknown_from, self._unknown_below)
        self._unknown_from = self._unknown_below
        for session in sorted(self.absent):
            self.end_session(session)
        for offset in unknown if self.keys is None else ():  # with keyed order, `_next` comes to them
            if self._is_open(offset) and offset not in self.leases:
                self._free.append(offset)
        heapq.heapify(self._free)

    # ---- settlements

    def ack(self, session: bytes, connection: int, grant: Grant, now_s: float) -> SettlementResult:
        """Settle a record that its worker has processed. An ack of an older grant counts if no newer one is leased."""
        verdict = self.judge_ack(session, grant) if self.hear(session, connection, now_s) else SettlementResult.LATER
        if verdict is None:
            self.leases.pop(grant.offset, None)
            self._proposals.ack(grant.offset)
        return verdict or SettlementResult.PROPOSED

    def judge_ack(self, session: bytes, grant: Grant) -> SettlementResult | None:
        """The verdict on an ack of an attached worker; None: carry it out."""
        lease = self.leases.get(grant.offset)
        newer = lease is not None and (lease.session != session or lease.grant[1:3] != grant[1:3])
        return self._judge_grant(grant) or (SettlementResult.LOST if newer else None)

    def nack(self, session: bytes, connection: int, grant: Grant, delay_ms: int, now_s: float) -> SettlementResult:
        """Charge a failed delivery: the record is granted again after `delay_ms`. Only the newest grant counts."""
        return self._fail(session, connection, grant, Charge(grant.offset, grant.delivery, delay_ms), now_s)

    def reject(self, session: bytes, connection: int, grant: Grant, now_s: float) -> SettlementResult:
        """Have a record buried, because no further delivery can succeed. Only the newest grant counts."""
        return self._fail(session, connection, grant, Charge(grant.offset, grant.delivery | REJECTED, 0), now_s)

    def _fail(self, session: bytes, connection: int, grant: Grant, charge: Charge, now_s: float) -> SettlementResult:
        verdict = self._judge(session, connection, grant, now_s) or self.check_newest(session, grant)
        if verdict is not None:
            return verdict
        del self.leases[grant.offset]
        self.propose(Proposal(self.era, charges=(charge,)))
        return SettlementResult.PROPOSED

    def release(self, session: bytes, connection: int, grant: Grant, now_s: float) -> SettlementResult:
        """Free a record that its worker gives back unstarted."""
        verdict = self._judge(session, connection, grant, now_s) or self.check_newest(session, grant)
        if verdict is None and not self.leases[grant.offset].started:
            self.take_back(grant.offset)
            return SettlementResult.DONE
        return verdict or SettlementResult.LOST

    def extend(self, session: bytes, connection: int, grant: Grant, started: bool, now_s: float) -> SettlementResult:
        """Extend the lease of a record, because its worker still processes it or begins to (`started`)."""
        verdict = self._judge(session, connection, grant, now_s) or self.check_newest(session, grant)
        if verdict is not None:
            return verdict
        lease = self.leases[grant.offset]
        lease.started = lease.started or started
        lease.until_s = max(lease.until_s, min(now_s + self._settings.lease_s, lease.granted_s + HOLD_S_MAX))
        lease.asked_until_s = None
        return SettlementResult.DONE

    def _judge(self, session: bytes, connection: int, grant: Grant, now_s: float) -> SettlementResult | None:
        """The verdict that is the same for every kind of settlement; None: carry the settlement out."""
        return self._judge_grant(grant) if self.hear(session, connection, now_s) else SettlementResult.LATER

    def _judge_grant(self, grant: Grant) -> SettlementResult | None:
        if grant.era != self.era:
            return SettlementResult.LOST
        if self.is_settled(grant.offset):
            return SettlementResult.DONE
        if grant.offset in self._group.burials or grant.offset in self._group.staged:
            return SettlementResult.LOST
        # Another settlement of this record, or a charge, is under way: its outcome decides about this one.
        return SettlementResult.LATER if grant.offset in self._proposals.pending else None

    def check_newest(self, session: bytes, grant: Grant) -> SettlementResult | None:
        lease = self.leases.get(grant.offset)
        newest = lease is not None and lease.session == session and lease.grant[1:3] == grant[1:3]
        return None if newest else SettlementResult.LOST

    # ---- time

    def expire(self, now_s: float) -> Expiry:
        """End sessions and leases that have run out. A delivery counts as failed only if its worker had begun it."""
        self.end_wait(now_s)
        for offset in self.keys.sweep(self.is_settled) if self.keys is not None else ():
            heapq.heappush(self._free, offset)
        for session, known in list(self.sessions.items()):
            gone = known.closed_s is not None and now_s >= known.closed_s + self._settings.rejoin_s
            if gone or self._is_silent(known, now_s):
                self.end_session(session)
        expiry = expire_leases(self.leases, now_s, self._settings.ask_s)
        for _, grant in expiry.charged:
            del self.leases[grant.offset]
            self.propose(Proposal(self.era, charges=(Charge(grant.offset, grant.delivery, 0),)))
        for _, grant in expiry.freed:
            self.take_back(grant.offset)
        return expiry

    # ---- proposals

    def propose(self, proposal: Proposal) -> None:
        self._proposals.add(proposal)

    def take_proposals(self) -> list[Proposal]:
        """The proposals to append now, in this order."""
        return self._proposals.take(self.era)

    def block(self, proposal: Proposal) -> None:
        """Grant none of the records of a proposal that is appended already."""
        self._proposals.block(proposal)

    def applied(self, proposal: Proposal) -> None:
        """Note that a proposal is applied, or was refused. Its records are free again, except the settled ones."""
        self._proposals.applied(proposal)
        self._opening.discard(proposal.opens)
        self._ending.discard(proposal.ends)
        for offset in proposal.blocked:
            self._let_go(offset)
        self.dead.note((*(charge.offset for charge in proposal.charges), *proposal.staged), self._group)

    def _let_go(self, offset: int) -> None:
        """Go on with a record that nothing blocks any more: offer it again, or the next one of its key."""
        if self._is_open(offset):
            self.offer(offset)
        elif self.keys and self.is_settled(offset) and (following := self.keys.settled(offset)) is not None:
            heapq.heappush(self._free, following)

    def begin_era(self, history: int) -> list[tuple[bytes, Grant]]:
        """Begin a new era, after a seek or after the group was made again. Returns the grants that are lost."""
        lost = [(lease.session, lease.grant) for lease in self.leases.values()]
        position = self._applied.position
        self._proposals.join(self.era)  # under the old era, whose settlements change nothing any more
        self.era = Era(history, self._group.generation)
        self.dead.clear()
        self.leases.clear()
        self._free.clear()
        self._waiting.clear()
        self._unknown_from = self._unknown_below = self._next = position
        self.keys = KeyOrder(position) if self.keys is not None else None
        self._mark_proposed = self._group.granted_below
        return lost
