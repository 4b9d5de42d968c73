"""Message ids: a record whose id is remembered is answered with the place of the first one, and not stored again."""

from __future__ import annotations

import random

import pytest

from tests.broker.partition.test_partition import Bench
from tests.broker.values import Applied
from tests.fakes.batches import checked, payload
from tinymq.base.config import Limits
from tinymq.base.errors import CorruptData, InvalidConfig, InvalidRequest, OutcomeUnknown
from tinymq.base.topic_config import TopicConfig, make
from tinymq.broker.duplicates.message_ids import COPY_WINDOW_MS, CopyId, stored_id
from tinymq.broker.partition.partition import Acks, Partition, Produced
from tinymq.broker.state import message_ids
from tinymq.broker.state.state import PartitionState
from tinymq.format.batch import decode_batch
from tinymq.format.entry import Kind, crc32c
from tinymq.proto import partition_pb2 as pb

WINDOW_MS = 2000
A = b"a" * 16


class Identified(Bench):
    def __init__(self) -> None:
        super().__init__()
        self.partition.configure(TopicConfig(dedupe_window_ms=WINDOW_MS))

    def put(self, message_id: str, *, acks: Acks = Acks.QUORUM, count: int = 1, **header: int) -> None:
        data = payload(count, value=message_id.encode(), **header)  # type: ignore[arg-type]
        self.partition.produce(*checked(data), acks, 1.0, self.answers.append, message_id.encode())

    @property
    def places(self) -> list[tuple[int, bool]]:
        return [(t.base_offset, t.duplicate) for t in self.answers if isinstance(t, Produced)]

    def later(self, ms: int) -> None:
        self.group.later_us += ms * 1000


@pytest.fixture
def bench() -> Identified:
    return Identified()


def test_a_duplicate_gets_the_place_of_the_first(bench: Identified) -> None:
    bench.send(3)
    bench.put("a")
    bench.put("b")
    bench.group.commit()
    bench.put("a")
    assert bench.places == [(0, False), (3, False), (4, False), (3, True)]
    assert bench.partition.high_watermark == 5


def test_a_duplicate_of_an_uncommitted_record_waits_for_it(bench: Identified) -> None:
    bench.put("a")
    bench.put("a")
    bench.put("a", acks=Acks.LEADER)
    assert bench.places == [(0, True)], "the leader's memory is enough for the last one"
    bench.group.commit()
    assert bench.places == [(0, True), (0, False), (0, True)]
    assert bench.partition.high_watermark == 1


def test_an_idempotent_producer_goes_on_behind_a_duplicate(bench: Identified) -> None:
    bench.put("a")
    bench.group.commit()
    bench.put("a", producer=9, sequence=0)
    bench.put("b", producer=9, sequence=1)
    bench.put("a", producer=9, sequence=0)  # a retry of the duplicate itself
    bench.group.commit(1)
    bench.put("b", producer=9, sequence=1)
    bench.group.commit()
    bench.put("a", producer=9, sequence=0)
    assert bench.places == [(0, False), (0, True), (0, True), (1, False), (1, True), (0, True)]
    assert bench.partition.high_watermark == 2
    bench.send(producer=9, sequence=2)


def test_an_id_is_forgotten_after_the_window(bench: Identified) -> None:
    bench.put("a")
    bench.group.commit()
    bench.later(WINDOW_MS)
    bench.put("a")
    bench.group.commit()
    bench.put("a")
    assert bench.places == [(0, False), (1, False), (1, True)]
    assert len(bench.partition.state.message_ids) == 1


def test_ids_of_an_idle_topic_are_forgotten(bench: Identified) -> None:
    bench.put("a")
    bench.group.commit()
    bench.partition.retain()
    assert len(bench.group.log.entries) == 3
    bench.later(WINDOW_MS + 1)
    bench.partition.retain()
    bench.group.commit()
    assert len(bench.partition.state.message_ids) == 0
    bench.partition.retain()
    assert len(bench.group.log.entries) == 4, "once"


def test_ids_of_a_topic_that_remembers_none_any_more_are_forgotten(bench: Identified) -> None:
    bench.put("a")
    bench.group.commit()
    bench.partition.configure(TopicConfig())
    bench.partition.retain()
    bench.group.commit()
    assert len(bench.partition.state.message_ids) == 0


def test_remembered_ids_are_bounded_and_the_oldest_is_dropped(
    bench: Identified, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_ids, "IDS_MAX", 2)
    for name in "abc":
        bench.put(name)
    bench.group.commit()
    bench.put("c")
    bench.put("a")
    bench.group.commit()
    assert bench.places[3:] == [(2, True), (3, False)]


def test_an_id_without_its_record_counts_for_nothing(bench: Identified) -> None:
    """The next leader keeps the command, and not the batch behind it; its own next entry is another record."""
    bench.put("a")
    del bench.group.log.entries[-1]
    bench.group.next_offset = 0
    bench.group.lose_leadership(keep_tail=True)
    assert isinstance(bench.answers.pop(), OutcomeUnknown)
    bench.group.win()
    bench.send()
    bench.put("a")
    bench.group.commit()
    assert bench.places == [(0, False), (1, False)]


def test_another_record_in_the_place_of_the_noted_one_has_not_its_id() -> None:
    at = Applied()
    data = payload()
    for crc, length in ((crc32c(data), len(data) + 1), (1, len(data))):
        note = pb.NoteMessageId(message_id=A, payload_crc=crc, length=length, window_ms=1000)
        at.run(pb.Command(note_message_id=note))
        at.batch(1)
        assert len(at.state.message_ids) == 0


def test_ids_outlive_a_change_of_leaders_and_uncommitted_ones_do_not(bench: Identified) -> None:
    bench.put("a")
    bench.group.commit()
    bench.put("b")
    bench.group.lose_leadership()
    bench.group.win()
    bench.answers.clear()
    bench.put("a")
    bench.put("b")
    bench.group.commit()
    assert bench.places == [(0, True), (1, False)]


@pytest.mark.parametrize(
    ("message_id", "count", "config", "why"),
    [
        ("a", 1, TopicConfig(), "no dedupe_window"),
        ("a", 2, TopicConfig(dedupe_window_ms=WINDOW_MS), "2 records"),
        ("a" * 257, 1, TopicConfig(dedupe_window_ms=WINDOW_MS), "at most 256 bytes"),
    ],
)
def test_ids_that_cannot_be_remembered_are_refused(
    bench: Identified, message_id: str, count: int, config: TopicConfig, why: str
) -> None:
    bench.partition.configure(config)
    with pytest.raises(InvalidRequest, match=why):
        bench.put(message_id, count=count)
    assert len(bench.group.log.entries) == 1


def test_the_setting_as_users_write_it() -> None:
    assert make([("dedupe_window", "on")]).dedupe_window_ms == 120_000
    assert make([("dedupe_window", "off")]).dedupe_window_ms is None
    assert dict(make([("dedupe_window", "5000")]).settings())["dedupe_window"] == "5000"
    with pytest.raises(InvalidConfig):
        make([("dedupe_window", "999")])


GOLDEN = (
    "52206161616161616161616161616161616105000000000000000500000000000000"
    "5a1b0a106161616161616161616161616161616110071d01000000200a"
)


def test_the_bytes_are_those_that_were_written_down() -> None:
    ids = message_ids.MessageIds()
    ids._ids[A] = message_ids.RememberedId(5, 5)
    ids._awaited = message_ids.AwaitedRecord(A, 7, 1, 10)
    state = pb.State(message_ids=ids.dump(), awaited_message=ids.dump_awaited())
    assert state.SerializeToString(deterministic=True).hex() == GOLDEN
    again = message_ids.MessageIds.load(state.message_ids, state.awaited_message, 6)
    assert (again.dump(), again.dump_awaited()) == (state.message_ids, state.awaited_message)


@pytest.mark.parametrize(
    "state",
    [
        pb.State(message_ids=bytes(31)),
        pb.State(message_ids=bytes(64)),
        pb.State(message_ids=A + (6).to_bytes(8, "little") + bytes(8)),
        pb.State(awaited_message=pb.AwaitedMessage(message_id=b"short")),
    ],
    ids=["half of one", "twice", "behind the end", "no id"],
)
def test_damaged_bytes_are_refused(state: pb.State) -> None:
    awaited = state.awaited_message if state.HasField("awaited_message") else None
    with pytest.raises(CorruptData):
        message_ids.MessageIds.load(state.message_ids, awaited, 6)


@pytest.mark.parametrize("seed", range(20))
def test_no_id_is_stored_twice_in_random_lives(seed: int) -> None:
    """Leaders change, with the tail kept, cut, or cut between an id and its record; replicas start from snapshots."""
    rng = random.Random(seed)
    bench = Identified()
    told: dict[str, list[Produced]] = {}

    def put(name: str, sequence: int) -> None:
        answers: list[object] = []
        told_here = told.setdefault(name, [])
        data = payload(1, value=name.encode(), producer=sequence and 7 + sequence, sequence=0)

        def done(outcome: object) -> None:
            answers.append(outcome)
            if isinstance(outcome, Produced):
                told_here.append(outcome)

        bench.partition.produce(*checked(data), Acks.QUORUM, 1.0, done, name.encode())

    for step in range(120):
        put(rng.choice("abcdefgh"), rng.choice([0, step + 1]))
        action = rng.random()
        if action < 0.5:
            bench.group.commit(rng.randint(0, len(bench.group.log.entries) - bench.group.applied))
        elif action < 0.6:
            tail = len(bench.group.log.entries) - bench.group.applied
            kept = len(bench.group.log.entries) - rng.randint(0, tail)
            del bench.group.log.entries[kept:]
            bench.group.next_offset = bench.group.log.entries[-1].header.next_offset
            bench.group.lose_leadership(keep_tail=True)
            if rng.random() < 0.5:
                before, partition = bench.partition, Partition("t/0", bench.deadlines, lambda call: call(), {}.get)
                partition.load(before.dump())
                partition.attach(bench.group)
                partition.configure(before.config)
                bench.partition = bench.group.machine = partition
            bench.group.win()
    bench.group.commit()
    data = [entry for entry in bench.group.log.entries if entry.header.kind == Kind.DATA]
    names = {entry.header.base_offset: name_in(entry.payload) for entry in data}
    assert len(set(names.values())) == len(data), f"stored twice, seed {seed}"
    for name, places in told.items():
        assert {names[p.base_offset] for p in places} <= {name}, "the place of another record"
    replica = PartitionState(100)
    for entry in bench.group.log.entries:
        replica.apply(entry)
        copy = PartitionState(100)
        copy.load(replica.dump())
        replica = copy
    assert replica.dump() == bench.partition.dump()


def name_in(data: bytes) -> str:
    value = decode_batch(data, Limits()).column(1)[0].as_py()
    return str(value.decode()[:1])


def test_ids_of_users_have_a_room_of_their_own() -> None:
    assert stored_id(b"a") != stored_id(b"b")
    assert len(stored_id(b"")) == 16


# ---- copies that brokers make -----------------------------------------------------------------------------------


def copy(bench: Bench, digest: bytes) -> None:
    bench.partition.produce(*checked(payload(value=digest)), Acks.QUORUM, 1.0, bench.answers.append, CopyId(digest))


def test_copies_are_recognised_for_a_day_whatever_the_dedupe_window() -> None:
    bench = Identified()
    bench.partition.configure(TopicConfig())
    copy(bench, A)
    bench.group.commit()
    bench.later(COPY_WINDOW_MS)
    bench.partition.retain()
    copy(bench, A)
    assert bench.places == [(0, False), (0, True)]
    bench.later(1)
    bench.partition.retain()
    bench.group.commit()
    assert len(bench.partition.state.copy_ids) == 0
    assert bench.partition.state.copy_ids.complete_from == 1, "a copy may lie below it, unremembered"


def test_the_duplicate_of_a_copy_is_answered_when_the_first_copy_is_committed(bench: Identified) -> None:
    copy(bench, A)
    copy(bench, A)
    assert bench.places == []
    bench.group.commit()
    assert sorted(bench.places) == [(0, False), (0, True)]


def test_ids_of_copies_and_of_users_do_not_displace_each_other(
    bench: Identified, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_ids, "IDS_MAX", 2)
    copy(bench, A)
    bench.group.commit()
    for name in "bcdef":
        bench.put(name)
    bench.group.commit()
    copy(bench, A)
    assert bench.places[-1] == (0, True)
    assert bench.partition.state.copy_ids.complete_from == 0


def test_evicted_ids_of_copies_leave_a_trace_in_the_snapshot(
    bench: Identified, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_ids, "IDS_MAX", 2)
    for letter in b"abc":
        copy(bench, bytes([letter]) * 16)
        bench.group.commit()
    state = PartitionState(100)
    state.load(bench.partition.dump())
    assert (len(state.copy_ids), state.copy_ids.complete_from) == (2, 1)
    assert state.dump() == bench.partition.dump()
