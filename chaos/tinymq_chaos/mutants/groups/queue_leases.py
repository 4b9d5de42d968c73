"""Mutants of the leases of queue groups, as the leader of a partition has them."""

from __future__ import annotations

from typing import Any

from tinymq.broker.groups import queue_leases
from tinymq.broker.groups.key_order import KeyOrder
from tinymq.broker.groups.lease_proposals import LeaseProposals
from tinymq.broker.groups.lease_values import SettlementResult, has_settled
from tinymq.broker.groups.queue_leases import QueueLeases
from tinymq_chaos.mutants.mutant import Patches, mutant

RULES = "tests/broker/groups/test_queue_leases.py::test_"
SEARCH = "tests/broker/groups/test_queue_leases_model.py::test_random_worlds"
KEYS = f"{SEARCH}_of_keys"


@mutant("queue leases: a session is applied before its first grant", test=SEARCH)
def sessions_are_granted_at_once(p: Patches) -> None:
    p.replace(QueueLeases.is_open, lambda self, session: session not in self._ending)


@mutant(
    "queue leases: a session that is not known begins with nothing",
    test=f"{RULES}a_session_that_is_not_known_begins_with_nothing",
)
def strangers_keep_what_they_list(p: Patches) -> None:
    def attach(self: QueueLeases, session: bytes, connection: int, held: Any, now_s: float) -> Any:
        held = list(held)
        lost = real(self, session, connection, held, now_s)
        return [] if lost and all(self.confirm(session, each, now_s) for each in held) else lost

    real = QueueLeases.attach
    p.replace(QueueLeases.attach, attach)


@mutant("queue leases: a failure counts only for the newest grant", test=SEARCH)
def old_grants_fail(p: Patches) -> None:
    p.replace(QueueLeases.check_newest, lambda self, session, grant: None)


@mutant(
    "queue leases: a settlement waits for the one that is under way",
    test=f"{RULES}a_settlement_waits_for_the_one_that_is_under_way",
)
def settlements_wait_for_nothing(p: Patches) -> None:
    def add(self: LeaseProposals, proposal: Any) -> None:
        real(self, proposal)
        self.pending.clear()

    real = LeaseProposals.add
    p.replace(LeaseProposals.add, add)


@mutant(
    "queue leases: a session whose end is proposed does not attach again",
    test=f"{RULES}a_session_whose_end_is_proposed_does_not_attach",
)
def ending_sessions_attach(p: Patches) -> None:
    p.replace(QueueLeases.check_session, lambda self, session: None)


@mutant("queue leases: a record is granted below a mark that is applied", test=SEARCH)
def records_are_granted_above_the_mark(p: Patches) -> None:
    def may_grant(self: QueueLeases, offset: int) -> bool:
        real(self, offset)
        return True

    real = QueueLeases.may_grant
    p.replace(QueueLeases.may_grant, may_grant)


@mutant("queue leases: what a proposal from before a seek gives back is looked at by the mark", test=SEARCH)
def records_come_back_above_the_mark(p: Patches) -> None:
    def offer(self: QueueLeases, offset: int) -> None:
        self._free.insert(0, offset)

    p.replace(QueueLeases.offer, offer)


@mutant("queue leases: after a change of leaders, the workers attach first", test=SEARCH)
def new_leaders_wait_for_nobody(p: Patches) -> None:
    def end_wait(self: QueueLeases, now_s: float) -> None:
        self._rejoin_until_s = now_s
        real(self, now_s)

    real = QueueLeases.end_wait
    p.replace(QueueLeases.end_wait, end_wait)


@mutant(
    "queue leases: a settlement of an older connection is not carried out",
    test=f"{RULES}a_settlement_of_an_older_connection_is_not_carried_out",
)
def old_connections_are_heard(p: Patches) -> None:
    p.replace(QueueLeases.hear, lambda self, session, connection, now_s: session in self.sessions)


@mutant("queue leases: only what was started is charged", test=SEARCH)
def neighbours_are_charged(p: Patches) -> None:
    def end_session(self: QueueLeases, session: bytes) -> None:
        for lease in self.leases.values():
            lease.started = True
        real(self, session)

    real = QueueLeases.end_session
    p.replace(QueueLeases.end_session, end_session)


@mutant("queue leases: a record waits for the earlier ones of its key", test=KEYS)
def keys_have_no_order(p: Patches) -> None:
    p.replace(KeyOrder.is_first, lambda self, offset: True)


@mutant(
    "queue leases: a record waits while an earlier one of its key is being buried",
    test=f"{RULES}a_record_waits_while_an_earlier_one_of_its_key_is_being_buried",
)
def burials_free_their_key(p: Patches) -> None:
    def is_settled(self: QueueLeases, offset: int) -> bool:
        return bool(real(self, offset)) or offset in self._applied.group.burials

    real = QueueLeases.is_settled
    p.replace(QueueLeases.is_settled, is_settled)


@mutant(
    "queue leases: an ack under an older grant counts while nobody holds a newer one",
    test=f"{RULES}an_ack_under_an_older_grant_does_not_end_a_newer_lease",
)
def any_ack_counts(p: Patches) -> None:
    def ack(self: QueueLeases, session: bytes, connection: int, grant: Any, now_s: float) -> SettlementResult:
        lease = self.leases.get(grant.offset)
        if lease is not None:
            session, grant = lease.session, lease.grant
        return real(self, session, self.sessions[session].connection, grant, now_s)

    real = QueueLeases.ack
    p.replace(QueueLeases.ack, ack)


@mutant(
    "queue leases: an attachment answers acks of its own era only",
    test=f"{RULES}an_ack_is_answered_in_its_own_era_and_by_the_applied_state",
)
def acks_of_any_era_are_answered(p: Patches) -> None:
    p.replace(has_settled, lambda applied, era, grant: applied.group.is_settled(grant.offset, applied.position))


@mutant(
    "queue leases: a record that sessions died with is granted alone, and counts as started",
    test=f"{RULES}a_record_that_three_dead_sessions_gave_back_is_granted_alone",
)
def deadly_records_are_like_others(p: Patches) -> None:
    p.set(queue_leases, "ALONE_RETURNS", 1_000_000)
