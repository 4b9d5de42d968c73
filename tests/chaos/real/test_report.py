"""Figures of reports: hand-made runs with known answers."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.chaos.real.reported import TOPIC, Tape, steady
from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.history import History, Outcome
from tinymq_chaos.real.report import (
    DamagedRun,
    Findings,
    NoRun,
    read_run,
    summary,
    write_comparison,
    write_report,
)
from tinymq_chaos.real.report.__main__ import main
from tinymq_chaos.real.report.compare import rows
from tinymq_chaos.real.report.timeline import PIECES_MAX, timeline

LOG = (TOPIC, 0)


def findings(tape: Tape, folder: Path, **said: object) -> Findings:
    return Findings(read_run(tape.keep(folder, **said)))


def test_a_quiet_run_in_figures(tmp_path: Path) -> None:
    found = summary(findings(steady(10), tmp_path, seed=7, command="make chaos SEED=7", target="tinymq", nodes=3))
    assert found["records"] == {"acknowledged": 100, "lost": 0}
    assert found["acknowledged_per_s"] == pytest.approx(10, rel=0.01)
    assert found["calls"] == {"send": {"pending": 0, "ok": 100, "failed": 0, "unknown": 0}}
    assert found["send_ms"] == {
        "count": 100,
        **dict.fromkeys(("p50", "p99", "p999", "max"), pytest.approx(10, rel=0.01)),
    }
    assert (found["seed"], found["command"], found["target"], found["nodes"]) == (7, "make chaos SEED=7", "tinymq", 3)
    assert (found["faults"], found["spans"], found["anomalies"], found["leader_changes"]) == ({}, [], [], 0)


def test_quantiles_are_those_of_the_calls(tmp_path: Path) -> None:
    tape = Tape()
    sent = [tape.send(float(i), i + (1.0 if i >= 98 else 0.002)) for i in range(100)]
    tape.replicas(sent)
    found = summary(findings(tape, tmp_path))["send_ms"]
    assert (found["p50"], found["p99"]) == (pytest.approx(2, rel=0.01), pytest.approx(1000, rel=0.01))


def test_effects_during_and_after_a_fault_are_separate(tmp_path: Path) -> None:
    tape = steady(20, but=(5.0, 7.5))
    tape.fault("kill_leader", "broker 1", 5.0, 6.0)
    tape.led(0.0, 1, 1)
    tape.led(5.8, 2, 2)
    found = findings(tape, tmp_path)
    (span,) = summary(found)["spans"]
    assert (span["kind"], span["what"], span["began_s"], span["ended_s"]) == ("kill_leader", "broker 1", 5.0, 6.0)
    assert span["silent_while_s"] == pytest.approx(1.0)
    assert span["silent_after_s"] == pytest.approx(1.5)
    assert span["leader_changes"] == 1
    assert found.longest_silence is not None
    assert found.longest_silence.ended_s - found.longest_silence.began_s == pytest.approx(2.5)


def test_without_a_request_there_is_no_silence(tmp_path: Path) -> None:
    tape = Tape()
    tape.replicas([tape.send(1.0, 1.01), tape.send(30.0, 30.02)])
    tape.fault("pause", "broker 2", 2.0, 8.0)
    (span,) = summary(findings(tape, tmp_path))["spans"]
    assert (span["silent_while_s"], span["silent_after_s"], span["partitions"]) == (0.0, 0.0, {})


def test_a_silence_ends_when_no_client_retries_its_failed_write(tmp_path: Path) -> None:
    tape = Tape()
    first = tape.send(0.0, 0.1)
    for i in range(5):
        tape.send(2.0 + i / 2, 2.2 + i / 2, Outcome.FAILED)  # until 4.2 s, with pauses of 0.3 s
    tape.replicas([first])
    tape.end(60.0)
    found = findings(tape, tmp_path)
    assert [(s.began_s, s.ended_s) for s in found.silences[LOG]] == [(0.0, 0.1), (2.0, 4.2)]


def test_a_write_without_an_answer_waits_to_the_end(tmp_path: Path) -> None:
    tape = Tape()
    tape.replicas([tape.send(0.0, 0.1)])
    tape.send(1.0, 1.0, Outcome.PENDING)
    tape.end(9.0)
    found = findings(tape, tmp_path)
    assert [(s.began_s, s.ended_s) for s in found.silences[LOG]][-1] == (1.0, 9.0)
    assert summary(found)["calls"]["send"]["pending"] == 1


def test_records_without_an_acknowledgement_are_not_counted(tmp_path: Path) -> None:
    tape = Tape()
    call = tape.history.invoke("p", "send", 1.0, topic=TOPIC, partition=0, records=["x"], acks="none")
    call.ok([0, -1])
    assert summary(findings(tape, tmp_path))["records"]["acknowledged"] == 0


def test_the_count_of_lost_records_exceeds_the_list_of_anomalies(tmp_path: Path) -> None:
    tape = Tape()
    sent = [tape.send(i / 10, i / 10 + 0.01) for i in range(30)]
    tape.replicas(sent[:10])
    found = findings(tape, tmp_path)  # run.json names no anomalies, so the checkers run
    lost = [a for a in found.run.anomalies if isinstance(a, Anomaly) and a.kind is AnomalyKind.LOST_WRITE]
    assert 0 < len(lost) < 20
    assert found.lost == 20


def test_an_anomaly_is_counted_to_the_fault_in_whose_time_it_lies(tmp_path: Path) -> None:
    tape = steady(30)
    tape.fault("pause", "broker 1", 5.0, 6.0)
    tape.fault("latency", "everywhere", 20.0, 21.0)
    anomaly = asdict(Anomaly(AnomalyKind.STALE, "read of what was over", LOG, times_s=(20.5,)))
    found = findings(tape, tmp_path, anomalies=[anomaly, "a broker did not stop"])
    assert [span["anomalies"] for span in summary(found)["spans"]] == [0, 1]
    assert json.loads(json.dumps(summary(found)))["anomalies"][1] == "a broker did not stop"


def test_a_long_run_is_cut_into_a_bounded_number_of_pieces(tmp_path: Path) -> None:
    found = findings(steady(300), tmp_path)
    line = timeline(found)
    assert line.pieces <= PIECES_MAX
    assert sum(line.ok) == 3000
    assert sum(line.acknowledged) * line.width_s == pytest.approx(3000)


def test_a_summary_is_written_and_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = steady(5).keep(tmp_path / "run", seed=1)
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    first = (folder / "report.html").read_text(), (folder / "summary.json").read_text()
    assert write_report(folder, tmp_path / "other.html").read_text() == first[0]
    assert (folder / "summary.json").read_text() == first[1]
    assert json.loads(first[1])["records"]["acknowledged"] == 50


def test_two_runs_are_compared(tmp_path: Path) -> None:
    before, after = steady(10), steady(10, but=(4.0, 7.0))
    old, new = before.keep(tmp_path / "old"), after.keep(tmp_path / "new")
    found = {row.figure: row for row in rows(Findings(read_run(old)), Findings(read_run(new)))}
    assert found["Longest silence"].judged == "worse"
    assert found["Longest silence"].ratio == pytest.approx(300, rel=0.02)
    assert found["Records acknowledged"].ratio == 1.0
    assert found["Records lost"].judged == ""
    assert found["Polls with records, p50"].ratio is None
    page = write_comparison(new, old)
    assert page == new / "comparison.html"
    assert "300" in page.read_text()


def test_errors_distinguish_a_folder_without_a_run_from_a_damaged_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NoRun, match="make chaos"):
        read_run(tmp_path)
    folder = steady(1).keep(tmp_path / "run")
    lines = (folder / "history.jsonl").read_text().splitlines()
    for damaged in (lines[3][:20], "[]", "{}", '{"line":"call","outcome":"ok"}'):
        (folder / "history.jsonl").write_text("\n".join([*lines[:3], damaged, *lines[4:]]))
        with pytest.raises(DamagedRun, match=r"history\.jsonl, line 4"):
            read_run(folder)
    (folder / "history.jsonl").write_text("\n".join(lines))
    for damaged in ("[]", "{", '{"anomalies": 3}', '{"anomalies": [{"kind": "no such"}]}', '{"anomalies": [3]}'):
        (folder / "run.json").write_text(damaged)
        with pytest.raises(DamagedRun, match=r"run\.json"):
            read_run(folder)
    assert main([str(folder)]) == 2
    assert "DamagedRun" in capsys.readouterr().err


def test_an_empty_history_is_a_run(tmp_path: Path) -> None:
    tape = Tape()
    found = findings(tape, tmp_path)
    assert summary(found)["records"] == {"acknowledged": 0, "lost": 0}
    assert isinstance(found.run.history, History)
