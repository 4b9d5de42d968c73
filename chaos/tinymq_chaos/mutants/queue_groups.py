"""Mutants of queue groups: settlements, failed deliveries, sessions, burials, and the copies in the dead letters."""

from __future__ import annotations

from typing import Any

from tinymq.broker.dead_letters import copy_ids, receiver
from tinymq.broker.duplicates.message_ids import CopyId, RecordId, UncommittedIds
from tinymq.broker.groups import dead_letter_topic
from tinymq.broker.state import queue_groups
from tinymq.broker.state.queue_group import Burial, QueueGroup
from tinymq.broker.state.queue_groups import QueueGroups
from tinymq_chaos.mutants.mutant import Patches, mutant

RULES = "tests/broker/state/test_queue_groups.py::test_"
LIVES = "tests/broker/state/test_queue_groups_model.py::test_"
BURIALS = "tests/broker/dead_letters/test_burial_model.py::test_"
LETTERS = "tests/broker/dead_letters/test_dead_letters.py::test_"
COPIES = "tests/broker/duplicates/test_message_ids.py::test_"


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
    p.replace(QueueGroup.without_taken, lambda self, start, end, refused: [(start, end)] if start < end else [])


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
    "queue groups: a burial goes to the dead letters that have the name now",
    test=f"{RULES}the_same_burial_gets_another_destination_and_keeps_its_id_and_headers",
)
def burials_keep_their_destination(p: Patches) -> None:
    def bury(self: QueueGroup, offset: int, burial: Burial, position: int) -> bool:
        known = self.burials.get(offset, burial)
        return real(self, offset, burial._replace(topic_id=known.topic_id, partition=known.partition), position)

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


@mutant(
    "queue groups: what waits for its time waits as long when the append clock jumps",
    test=f"{RULES}a_record_waits_as_long_although_the_append_clock_jumps",
)
def waits_end_with_a_jump(p: Patches) -> None:
    p.replace(QueueGroups.put_off, lambda self, now_us, jump_us: None)


# ---- dead letters --------------------------------------------------------------------------------------------------


@mutant("dead letters: where ids may be forgotten, the log is searched", test=f"{BURIALS}random_lives")
def the_log_is_not_searched(p: Patches) -> None:
    async def nothing(partition: Any, digest: bytes, start: int, end: int) -> None:
        return None

    p.replace(receiver.find_copy, nothing)


@mutant(
    "dead letters: a duplicate waits for the first copy's commit",
    test=f"{COPIES}the_duplicate_of_a_copy_is_answered_when_the_first_copy_is_committed",
)
def duplicates_are_answered_from_the_tail(p: Patches) -> None:
    def find(self: UncommittedIds, *asked: Any) -> Any:
        found = real(self, *asked)
        return None if found is None else found._replace(entry_index=0)

    real = UncommittedIds.find
    p.replace(UncommittedIds.find, find)


@mutant(
    "dead letters: copies are remembered for a day, whatever the topic's window",
    test=f"{COPIES}copies_are_recognised_for_a_day_whatever_the_dedupe_window",
)
def copies_are_forgotten_at_once(p: Patches) -> None:
    p.replace(RecordId.since_us, lambda self, now_us: now_us + 1)


@mutant(
    "dead letters: users' ids do not displace those of copies",
    test=f"{COPIES}ids_of_copies_and_of_users_do_not_displace_each_other",
)
def all_ids_are_of_users(p: Patches) -> None:
    p.replace(RecordId.remembered, lambda self, state: state.message_ids)


@mutant(
    "dead letters: the id has the history, the group and its generation",
    test=f"{BURIALS}each_thing_that_makes_another_record_makes_another_id",
)
def ids_name_the_place_alone(p: Patches) -> None:
    def burial_id(topic_id: bytes, partition: int, offset: int, **_: int) -> CopyId:
        return real(topic_id, partition, offset, history=0, group_id=0, generation=0)

    real = copy_ids.burial_id
    p.replace(copy_ids.burial_id, burial_id)


@mutant(
    "dead letters: a redrive has an id of its own",
    test=f"{BURIALS}each_thing_that_makes_another_record_makes_another_id",
)
def redrives_have_the_id_of_their_place(p: Patches) -> None:
    def redrive_id(topic_id: bytes, partition: int, offset: int, run: bytes) -> CopyId:
        return real(topic_id, partition, offset, bytes(16))

    real = copy_ids.redrive_id
    p.replace(copy_ids.redrive_id, redrive_id)


@mutant(
    "dead letters: they are as durable as their source",
    test=f"{LETTERS}a_group_is_refused_whose_dead_letters_would_be_less_durable",
)
def durability_does_not_matter(p: Patches) -> None:
    p.replace(dead_letter_topic.check_durability, lambda source, target: None)


@mutant(
    "dead letters: what fails there goes to no further ones",
    test=f"{LETTERS}what_fails_in_dead_letters_goes_to_no_further_ones",
)
def dead_letters_have_dead_letters(p: Patches) -> None:
    p.replace(dead_letter_topic.has_dead_letters, lambda topic, groups: False)


@mutant("dead letters: a repeated Bury keeps the first end", test=f"{BURIALS}random_lives")
def ends_move_on(p: Patches) -> None:
    def bury(self: QueueGroup, offset: int, burial: Burial, position: int) -> bool:
        known = self.burials.get(offset)
        if known is not None and known.message_id == burial.message_id:
            self.burials[offset] = known._replace(end=burial.end)
        return real(self, offset, burial, position)

    real = QueueGroup.bury
    p.replace(QueueGroup.bury, bury)
