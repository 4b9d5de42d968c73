"""Holds that a leader only remembers: when they do, what they keep away, and when they are written after all."""

from __future__ import annotations

import pytest

from tests.broker.test_partition import Bench
from tests.fakes.raft_group import NOW_US
from tinymq.broker.holds import HOLDS_MAX, Hold
from tinymq.broker.promises import endangered
from tinymq.entry import Kind
from tinymq.errors import DiskFull, NotLeader, OffsetOutOfRange
from tinymq.proto import partition_pb2 as pb
from tinymq.topic_config import DAY_MS, OnFull, TopicConfig

ID = b"h" * 16
HOUR_MS = 3_600_000


def hold(offset: int, lease_ms: int = HOUR_MS, hold_id: bytes = ID) -> pb.Hold:
    return pb.Hold(hold_id=hold_id, offset=offset, lease_ms=lease_ms)


def filled(config: TopicConfig | None = None) -> Bench:
    """Ten records."""
    bench = Bench()
    bench.partition.configure(config or TopicConfig())
    for _ in range(10):
        bench.send(1)
    bench.group.commit()
    return bench


def commands_of(bench: Bench) -> list[pb.Command]:
    entries = [e for e in bench.group.log.entries if e.header.kind == Kind.COMMAND]
    return [command for entry in entries for command in pb.Commands.FromString(entry.payload).commands]


@pytest.mark.parametrize(
    ("config", "hours", "danger"),
    [
        (TopicConfig(retention_ms=None), 10**6, False),
        (TopicConfig(), 7 * 24 - 2, False),
        (TopicConfig(), 7 * 24 - 1, True),  # the first record goes before an hour is over
        (TopicConfig(retention_ms=None, retention_bytes=1 << 40), 0, True),
        (TopicConfig(retention_ms=None, max_records=100, on_full=OnFull.DROP_OLDEST), 0, True),
        (TopicConfig(retention_ms=None, max_records=100), 0, False),
    ],
)
def test_what_may_go_within_the_lease_is_endangered(config: TopicConfig, hours: int, danger: bool) -> None:
    state = filled().partition.state
    now_us = NOW_US + hours * HOUR_MS * 1000 + 1_000_000
    assert endangered(config, state, 0, now_us, HOUR_MS * 1000) == danger
    assert endangered(config, state, 10, now_us, HOUR_MS * 1000) == (danger and config.retention_ms is None)


def test_a_promise_writes_nothing_and_keeps_retention_away() -> None:
    bench = filled(TopicConfig(retention_ms=10 * DAY_MS))
    promised = bench.partition.promise(hold(3))
    assert promised == Hold(3, bench.group.stamp_now_us() + HOUR_MS * 1000)
    bench.partition.config = TopicConfig(retention_ms=1000)  # what is not told to `configure` meets the promise alone
    bench.group.later_us = 5_000_000
    bench.partition.retain()
    bench.group.commit()
    assert [(c.WhichOneof("command"), c.move_start.offset) for c in commands_of(bench)] == [("move_start", 3)]
    assert bench.partition.log_start == 3
    bench.group.later_us = 2 * HOUR_MS * 1000  # its lease is over
    bench.partition.retain()
    bench.group.commit()
    assert bench.partition.log_start == 10


def test_settings_that_endanger_a_promise_make_it_a_hold() -> None:
    bench = filled()
    assert bench.partition.promise(hold(3)) is not None
    bench.partition.configure(TopicConfig(retention_ms=DAY_MS))
    assert commands_of(bench) == [], "that is long enough"
    bench.partition.configure(TopicConfig(retention_bytes=1))
    bench.group.commit()
    (written,) = commands_of(bench)
    assert (written.hold.hold_id, written.hold.offset, written.hold.lease_ms) == (ID, 3, HOUR_MS)
    assert bench.partition.promises.live(bench.group.stamp_now_us()) == []
    bench.partition.retain()
    bench.group.commit()
    assert bench.partition.log_start == 3
    assert bench.partition.promise(hold(5)) is None, "there is a hold of that id, which is moved"


def test_what_takes_a_hold_in_the_log() -> None:
    bench = filled(TopicConfig(retention_bytes=1 << 20))
    assert bench.partition.promise(hold(3)) is None
    bench.partition.configure(TopicConfig())
    with bench.partition.promises.trimming(0, NOW_US):
        assert bench.partition.promise(hold(3)) is None, "a trim that knows nothing of it is on its way"
    trim = pb.Command(move_start=pb.MoveStart(offset=5, reason=pb.MoveStart.TRIM))
    bench.partition.command([trim], 1.0, lambda _: None)
    assert bench.partition.promise(hold(3)) is None, "the log start is about to move"
    bench.group.commit()
    assert bench.partition.promise(hold(3)) is None, "it is gone, as the log will say"
    assert bench.partition.promise(hold(5)) is not None
    with pytest.raises(OffsetOutOfRange):
        bench.partition.promise(hold(11))


def test_holds_are_bounded_together() -> None:
    bench = filled()
    for number in range(HOLDS_MAX):
        held = pb.Command(hold=hold(0, hold_id=b"%16d" % number))
        bench.partition.command([held], 1.0, lambda _: None)
        bench.group.commit()
    assert bench.partition.promise(hold(3)) is None


def test_promises_count_with_holds() -> None:
    bench = filled()
    for number in range(HOLDS_MAX):
        assert bench.partition.promise(hold(number % 9, hold_id=b"%16d" % number)) is not None
    assert bench.partition.promise(hold(3)) is None
    assert bench.partition.promise(hold(4, hold_id=b"%16d" % 7)) is not None, "it is renewed"
    bench.partition.promises.release(b"%16d" % 7)
    assert bench.partition.promise(hold(3)) is not None


def test_a_promise_that_cannot_be_written_stays_one() -> None:
    bench = filled()
    promised = bench.partition.promise(hold(3))

    def full(commands: list[pb.Command]) -> None:
        raise DiskFull("no room")

    with pytest.raises(DiskFull):
        bench.partition.promises.write(
            TopicConfig(retention_bytes=1), bench.partition.state, bench.group.stamp_now_us(), full
        )
    assert bench.partition.promises.find(ID) == promised


def test_what_only_another_hold_keeps_is_endangered() -> None:
    """That one may be released first, and a new leader knows of no promise."""
    bench = filled(TopicConfig(retention_ms=1000))
    bench.partition.command([pb.Command(hold=hold(0, hold_id=b"o" * 16))], 1.0, lambda _: None)
    bench.group.commit()
    assert bench.partition.promise(hold(3, lease_ms=60_000)) is None


def test_promises_end_with_the_leadership() -> None:
    bench = filled()
    assert bench.partition.promise(hold(3)) is not None
    bench.group.lose_leadership(to=2)
    with pytest.raises(NotLeader):
        bench.partition.promise(hold(3))
    assert bench.partition.promises.find(ID) is None
