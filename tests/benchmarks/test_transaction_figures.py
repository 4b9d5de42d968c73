"""The page of transactions' figures, from made-up measurements, and the order in which a round measures."""

from __future__ import annotations

from datetime import UTC, datetime

from benchmarks.peers.contract import Measured
from benchmarks.peers.kafka_java import measured
from benchmarks.peers.machine import Machine
from benchmarks.peers.stage import Outcome
from benchmarks.transactions import page, sink
from benchmarks.transactions.bench import Findings, effort_of, parse
from benchmarks.transactions.delayed import Delayed, Returns
from benchmarks.transactions.plan import QUICK, ROWS, SYSTEMS, Case, round_of

MACHINE = Machine(datetime(2026, 1, 2, tzinfo=UTC), "abc", [1.5, 2.5], aged_s=3.0, took_s=600.0)
NAMES = {"tinymq": "tinymq 1", "kafka": "Kafka 2", "kafka-synced": "Kafka 2, synced"}


def outcome(rate: float, took_ms: tuple[float, ...] = ()) -> Outcome:
    return Outcome(Measured(1000, 1000 / rate, 0.01, took_ms), servers_cpu_s=0.02, load=1.0)


def findings() -> Findings:
    found = Findings(QUICK, names=NAMES, settings={"tinymq": {"topics": "3 replicas"}})
    found.beside = {
        Case("latency", "tinymq", "transactions"): [outcome(100, (5.0, 6.0, 20.0)), outcome(100, (7.0, 8.0, 30.0))],
        Case("latency", "kafka", "transactions"): [outcome(100, (9.0, 12.0, 40.0)), outcome(100, (9.0, 10.0, 50.0))],
        Case("throughput", "tinymq", "transact"): [outcome(80_000), outcome(100_000)],
        Case("throughput", "tinymq", "flushed"): [outcome(100_000), outcome(100_000)],
        Case("throughput", "kafka", "transact"): [outcome(20_000), outcome(50_000)],
    }
    found.sink = {sink.PLAIN: [100.0, 200.0], sink.DEFAULT: [90.0, 90.0], sink.EXACTLY_ONCE: [90.0, 180.0]}
    slow, quick = Returns([0.5] * 3, [2.0] * 3), Returns([0.4] * 3, [1.0] * 3)
    found.delayed = Delayed(
        messages=1000,
        sent_s=10.0,
        memory_before_mb=[90.0] * 3,
        memory_sent_mb=[200.0] * 3,
        memory_restarted_mb=[130.0] * 3,
        disk_bytes=[1_536_000] * 3,
        before=quick,
        after=slow,
    )
    return found


def test_the_page_says_which_goals_were_met_and_which_were_missed() -> None:
    text = page.text(findings(), MACHINE, ["process"])
    assert "p50 to Kafka's | ≤ 1 | 0.65 (0.50–0.80); p50 7.0 (6.0–8.0), p99 25.0 (20.0–30.0) ms: met | Kafka 2:" in text
    assert "to Kafka's | ≥ 2 | 3.00 (2.00–4.00); 90,000 (80,000–100,000)/s: met | Kafka 2: 35,000" in text
    assert "to the same without transactions | ≥ 0.9 | 0.90 (0.80–1.00)" in text
    assert "more memory per broker, MB | ≤ 100 | 40 (40–40) MB: met" in text
    assert "bytes on disk, to those of their values | ≤ 2 | 1.50: met" in text
    assert "restart, to that without them" in text
    assert "2.00; 2.00 (2.00–2.00) s: **missed** | without: 1.00" in text
    assert "| Spark's exactly-once sink to the plain one | ≥ 0.85 | 0.90 (0.90–0.90);" in text
    assert "left out of this run: process" in text
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith(("|", "#", "![")))


def test_what_was_not_measured_has_no_row() -> None:
    found = Findings(QUICK)
    found.broken["sink"] = "RuntimeError('no Java')"
    text = page.text(found, MACHINE, [])
    assert len([line for line in text.splitlines() if line.startswith("|")]) == 2  # the head of the table
    assert "sink failed: `RuntimeError('no Java')`" in text


def test_what_is_compared_follows_one_upon_the_other_by_turns() -> None:
    first, second = ([*round_of(number, str(number), tuple(ROWS), SYSTEMS, QUICK)] for number in (0, 1))
    kept = [step.case for step in first if step.case]
    assert [case.system for case in kept if case.row == "latency"] == [*SYSTEMS]
    assert next(step.case.system for step in second if step.case and step.case.row == "latency") == "kafka"
    assert [case.workload for case in kept if case[:2] == ("throughput", "tinymq")] == ["transact", "flushed"]
    assert {case.system for case in kept if case.row == "process"} == {"tinymq", "kafka"}
    assert {step.case for step in second} == {step.case for step in first}


def test_every_topic_is_made_before_it_is_used_and_once() -> None:
    for rows in (tuple(ROWS), ("reading",), ("process",)):
        made: set[tuple[str, str]] = set()
        for step in round_of(0, "0", rows, SYSTEMS, QUICK):
            new = {(step.system, topic) for topic in step.topics}
            assert not made & new
            made |= new
            used = [step.arguments[name] for name in ("topic", "source", "target") if name in step.arguments]
            assert all((step.system, str(topic)) in made for topic in used)


def test_a_row_alone_keeps_its_own_cases_only() -> None:
    steps = [*round_of(0, "0", ("reading",), SYSTEMS, QUICK)]
    assert {step.case.row for step in steps if step.case} == {"reading"}
    assert [step.workload for step in steps if not step.case] == ["transact", "flushed", "transact"]


def test_rows_rounds_and_messages_can_be_chosen() -> None:
    args = parse(["--quick", "--only", "delayed", "--rounds", "7", "--delayed", "5"])
    assert args.only == ["delayed"]
    assert (effort_of(args).rounds, effort_of(args).delayed) == (7, 5)
    assert effort_of(parse(["--quick"])) == QUICK


def test_kafkas_answer_has_each_transactions_time() -> None:
    assert measured("200 0.5 0.25 1.5,2.5", "transactions") == Measured(200, 0.5, 0.25, [1.5, 2.5])
    assert measured("200 0.5 0.25", "transact").took_ms == []
