"""Soft leases: what they block, what overrides them, and their bounds."""

from __future__ import annotations

import pytest

from tests.broker.partition.test_partition import Bench
from tinymq.base.errors import NotLeader, OffsetOutOfRange, QuotaExceeded
from tinymq.base.topic_config import DAY_MS, OnFull, TopicConfig
from tinymq.broker.state.holds import HOLDS_MAX, Hold
from tinymq.format.entry import Kind
from tinymq.proto import partition_pb2 as pb

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


def test_a_soft_lease_writes_nothing_and_delays_retention() -> None:
    bench = filled(TopicConfig(retention_ms=10 * DAY_MS))
    promised = bench.partition.grant_soft_lease(hold(3))
    assert promised == Hold(3, bench.group.append_time_now_us() + HOUR_MS * 1000)
    bench.partition.config = TopicConfig(retention_ms=1000)  # settings that bypass `configure` meet only the soft lease
    bench.group.later_us = 5_000_000
    bench.partition.retain()
    bench.group.commit()
    assert [(c.WhichOneof("command"), c.move_start.offset) for c in commands_of(bench)] == [("move_start", 3)]
    assert bench.partition.log_start == 3
    bench.group.later_us = 2 * HOUR_MS * 1000  # its lease has expired
    bench.partition.retain()
    bench.group.commit()
    assert bench.partition.log_start == 10


@pytest.mark.parametrize("config", [TopicConfig(retention_bytes=1), TopicConfig(retention_ms=1000)])
def test_a_soft_hold_delays_retention_and_is_never_written(config: TopicConfig) -> None:
    bench = filled()
    assert bench.partition.grant_soft_lease(hold(3)) is not None
    bench.partition.configure(config)
    assert bench.partition.grant_soft_lease(hold(3)) is not None, "it is renewed"
    bench.group.later_us = 5_000_000
    bench.partition.retain()
    bench.group.commit()
    assert {command.WhichOneof("command") for command in commands_of(bench)} == {"move_start"}
    assert bench.partition.log_start == 3


def test_a_soft_hold_refuses_no_producer() -> None:
    """A full partition with the policy `drop_oldest` drops; one that refuses still refuses."""
    bench = filled(TopicConfig(max_records=10, on_full=OnFull.DROP_OLDEST))
    assert bench.partition.grant_soft_lease(hold(0)) is not None
    for _ in range(10):
        bench.send(1)
        bench.group.commit()
    assert bench.partition.log_start == 10


def test_a_soft_hold_refuses_no_trim() -> None:
    bench = filled()
    assert bench.partition.grant_soft_lease(hold(3)) is not None
    assert _trimmed(bench, 8) == 8


def test_no_soft_hold_covers_records_about_to_be_removed() -> None:
    bench = filled()
    bench.partition.command([_trim(5)], 1.0, lambda _: None)
    with pytest.raises(OffsetOutOfRange) as refused:
        bench.partition.grant_soft_lease(hold(3))
    assert refused.value.detail["log_start"] == "5"
    assert bench.partition.grant_soft_lease(hold(5)) is not None
    bench.group.commit()
    with pytest.raises(OffsetOutOfRange):
        bench.partition.grant_soft_lease(hold(3))
    with pytest.raises(OffsetOutOfRange):
        bench.partition.grant_soft_lease(hold(11))


def _trim(offset: int) -> pb.Command:
    return pb.Command(move_start=pb.MoveStart(offset=offset, reason=pb.MoveStart.TRIM))


def _trimmed(bench: Bench, offset: int) -> int:
    """Return the log start after a trim."""
    bench.partition.command([_trim(offset)], 1.0, lambda _: None)
    bench.group.commit()
    return bench.partition.log_start


def test_holds_are_bounded_together() -> None:
    bench = filled()
    for number in range(HOLDS_MAX):
        held = pb.Command(hold=hold(0, hold_id=b"%16d" % number))
        bench.partition.command([held], 1.0, lambda _: None)
        bench.group.commit()
    with pytest.raises(QuotaExceeded) as refused:
        bench.partition.grant_soft_lease(hold(3))
    assert 0 < int(refused.value.detail["retry_after_ms"]) <= HOUR_MS


def test_soft_leases_count_with_holds() -> None:
    bench = filled()
    for number in range(HOLDS_MAX):
        assert bench.partition.grant_soft_lease(hold(number % 9, hold_id=b"%16d" % number)) is not None
    with pytest.raises(QuotaExceeded):
        bench.partition.grant_soft_lease(hold(3))
    assert bench.partition.grant_soft_lease(hold(4, hold_id=b"%16d" % 7)) is not None, "it is renewed"
    bench.partition.soft_leases.release(b"%16d" % 7)
    assert bench.partition.grant_soft_lease(hold(3)) is not None


def test_soft_leases_end_with_the_leadership() -> None:
    bench = filled()
    assert bench.partition.grant_soft_lease(hold(3)) is not None
    bench.group.lose_leadership(to=2)
    with pytest.raises(NotLeader):
        bench.partition.grant_soft_lease(hold(3))
    assert bench.partition.soft_leases.find(ID) is None
