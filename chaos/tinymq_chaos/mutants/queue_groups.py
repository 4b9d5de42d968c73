"""Mutants of the replicated state of queue groups: settlements, failed deliveries, sessions and burials."""

from __future__ import annotations

from typing import Any

from tinymq.broker.state import queue_groups
from tinymq.broker.state.queue_group import Burial, QueueGroup
from tinymq.broker.state.queue_groups import QueueGroups
from tinymq_chaos.mutants.mutant import Patches, mutant

RULES = "tests/broker/state/test_queue_groups.py::test_"
LIVES = "tests/broker/state/test_queue_groups_model.py::test_"


@mutant("queue groups: what was granted before a seek or a loss changes nothing", test=f"{LIVES}random_lives")
def settlements_outlive_seeks(p: Patches) -> None:
    p.replace(queue_groups.check_current, lambda current: None)


@mutant("queue groups: a failed delivery counts once", test=f"{LIVES}random_lives")
def charges_are_added(p: Patches) -> None:
    def charge(self: QueueGroup, charges: Any, place: Any) -> Any:
        added = [
            c._replace(delivery=self.failures[c.offset].deliveries + 1) if c.offset in self.failures else c
            for c in charges
        ]
        return real(self, added, place)

    real = QueueGroup.charge
    p.replace(QueueGroup.charge, charge)


@mutant("queue groups: a session ends once", test=f"{LIVES}random_lives")
def sessions_end_again(p: Patches) -> None:
    def end_session(self: QueueGroup, session: bytes, *held: Any) -> None:
        self.open_session(session)
        real(self, session, *held)

    real = QueueGroup.end_session
    p.replace(QueueGroup.end_session, end_session)


@mutant("queue groups: a later record of a key is not settled first", test=f"{LIVES}keyed_settlements_stay_in_order")
def keys_are_settled_in_any_order(p: Patches) -> None:
    def ack(self: QueueGroup, acks: Any, place: Any) -> Any:
        return real(self, [each._replace(prior=None) for each in acks], place)

    real = QueueGroup.ack
    p.replace(QueueGroup.ack, ack)


@mutant("queue groups: only its burial settles a record that is being buried", test=f"{LIVES}random_lives")
def burials_do_not_block(p: Patches) -> None:
    p.replace(QueueGroup.free_of_burials, lambda self, start, end, refused: [(start, end)] if start < end else [])


@mutant("queue groups: a burial outlives a seek", test=f"{LIVES}random_lives")
def seeks_end_burials(p: Patches) -> None:
    def sought(self: QueueGroup, generation: int, position: int) -> None:
        real(self, generation, position)
        self.burials.clear()

    real = QueueGroup.sought
    p.replace(QueueGroup.sought, sought)


@mutant(
    "queue groups: every copy of a burial has one id and the same headers",
    test=f"{RULES}the_same_burial_gets_another_destination_and_keeps_its_id_and_headers",
)
def burials_begin_again(p: Patches) -> None:
    def bury(self: QueueGroup, offset: int, burial: Burial, position: int) -> bool:
        if offset in self.burials:
            burial = burial._replace(headers=burial.headers + b"again")
        self.burials.pop(offset, None)
        return real(self, offset, burial, position)

    real = QueueGroup.bury
    p.replace(QueueGroup.bury, bury)


@mutant(
    "queue groups: a record that is being buried stays, whatever the cursors say",
    test=f"{RULES}a_burial_keeps_its_record_for_retention",
)
def burials_keep_nothing(p: Patches) -> None:
    p.replace(QueueGroups.lowest_burial, property(lambda self: None))


@mutant("queue groups: the snapshot restores them", test=f"{LIVES}random_lives")
def queue_groups_are_forgotten(p: Patches) -> None:
    real = QueueGroups.load.__func__  # type: ignore[attr-defined]

    def load(cls: Any, state: Any, cursors: Any, end: int) -> Any:
        made = real(cls, state, cursors, end)
        for group in made.by_name.values():
            group.failures.clear()
        return made

    p.replace(QueueGroups.load, classmethod(load))
