"""A failed run prints the command that repeats it, and a campaign reports failures and totals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tinymq_chaos.mutants import MUTANTS
from tinymq_chaos.mutants.__main__ import plan_of
from tinymq_chaos.sim import __main__ as command
from tinymq_chaos.sim.campaign.campaign import FAILURES_MAX, Campaign
from tinymq_chaos.sim.campaign.plan import Plan
from tinymq_chaos.sim.campaign.run import Result

MAKEFILE = Path(__file__).resolve().parent.parent.parent / "Makefile"
SMALL = Plan(3, seconds=9.0, workloads=("lone",), faults=("kill",), pace=3.0)
PLANS = [
    Plan(17),
    Plan(15, 5),
    Plan(3, faults=()),
    Plan(3, faults=("kill", "crash_at_set_aside"), workloads=("lone", "churn"), seconds=14.5),
    Plan(4, segment_bytes=4096, latency_s=0.05, pace=0.25),
    Plan(4, 6, acts=(1, 4), replicas=2, gap_s=8.0, client_bytes_per_s=60_000),
    Plan(4, acts=()),
    *(plan_of(mutant, 7) for mutant in MUTANTS.values()),
]


def _arguments(words: str) -> list[str]:
    """Return what `make sim NAME=value ..` passes on, according to the Makefile."""
    flags = dict(re.findall(r"\$\(if \$\((\w+)\),(--[a-z-]+) \$\(\1\)\)", MAKEFILE.read_text()))
    make, target, *settings = words.split()
    assert (make, target) == ("make", "sim")
    return [word for name, value in (s.split("=", 1) for s in settings) for word in (flags[name], value)]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.command.removeprefix("make sim "))
def test_a_plan_equals_the_plan_of_its_command(plan: Plan) -> None:
    options = command.parse_options(_arguments(plan.command))
    assert command._plan(options, options.seed) == plan


def _values(plan: Plan, *anomalies: str) -> dict[str, Any]:
    result = Result(plan, list(anomalies), virtual_s=30.0, real_s=1.0, records=12)
    result.faults, result.happened = {"kill": 2}, {"crash at cut": 3}
    return result.values()


def test_a_failure_is_printed_with_its_command_and_counted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    campaign = Campaign([], None, 1, str(tmp_path / "results"))
    campaign._take("make sim SEED=1 BROKERS=3", _values(Plan(1)))
    assert "FAILED" not in capsys.readouterr().out
    assert campaign.failures == []
    campaign._take("make sim SEED=2 BROKERS=3", _values(Plan(2), "lost write: p-0", "gap: 3"))
    output = capsys.readouterr().out
    assert output.splitlines() == ["FAILED  make sim SEED=2 BROKERS=3", "    lost write: p-0", "    gap: 3"]
    assert campaign.failures == ["make sim SEED=2 BROKERS=3"]
    campaign._tell()
    output = capsys.readouterr().out
    for part in (
        "2 runs, 60 virtual",
        "4 faults",
        "24 records",
        "1 failed",
        "seeds 1 to 2",
        "kill 4",
        "crash at cut 6",
    ):
        assert part in output
    lines = [json.loads(line) for line in (tmp_path / "results").read_text().splitlines()]
    assert [line["command"] for line in lines] == ["make sim SEED=1 BROKERS=3", "make sim SEED=2 BROKERS=3"]
    assert [line["anomalies"] for line in lines] == [[], ["lost write: p-0", "gap: 3"]]
    assert lines[0]["happened"] == {"crash at cut": 3}


def test_a_campaign_stops_once_enough_has_failed() -> None:
    campaign = Campaign([Plan(n) for n in range(100)], None, 2, None)
    assert [plan.seed for plan in campaign._next(2)] == [0, 1, 2, 3]
    campaign.failures = ["make sim"] * FAILURES_MAX
    assert list(campaign._next(1)) == []
    late = Campaign([Plan(1)], 0.0, 1, None)
    assert list(late._next(1)) == []


def test_a_campaign_runs_its_plans_in_processes_of_their_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert Campaign([SMALL], None, 1, str(tmp_path / "results")).run() == []
    (line,) = map(json.loads, (tmp_path / "results").read_text().splitlines())
    assert (line["command"], line["anomalies"]) == (SMALL.command, [])
    assert line["faults"]["kill"] > 0
    assert "1 runs" in capsys.readouterr().out


@pytest.mark.parametrize("anomalies", [[], ["lost write: p-0"]])
def test_a_replay_ends_with_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], anomalies: list[str]
) -> None:
    asked: list[Plan] = []

    def run(plan: Plan) -> Result:
        asked.append(plan)
        return Result(plan, list(anomalies), ["the transcript"], digest="d1")

    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr(sys, "argv", ["sim", *_arguments(SMALL.command)])
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # otherwise it would restart itself
    assert command.main() == len(anomalies)
    assert asked == [SMALL]
    output = capsys.readouterr().out.splitlines()
    assert output[0] == "the transcript"
    assert output[-1].strip() == (anomalies[0] if anomalies else "no anomalies")


def test_an_interrupted_campaign_prints_its_totals() -> None:
    arguments = ["--seeds", "0:100000", "--processes", "1", "--timing", "0", "--progress-s", "0", "--run-s", "9"]
    campaign = subprocess.Popen(
        [sys.executable, "-m", "tinymq_chaos.sim", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(MAKEFILE.parent / "chaos"), "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    try:
        assert campaign.stdout is not None
        assert "0 failed" in campaign.stdout.readline()
        os.killpg(campaign.pid, signal.SIGINT)  # as a terminal does
        while "interrupted" not in (line := campaign.stdout.readline()):
            assert line, "it ended without a word"
        os.killpg(campaign.pid, signal.SIGINT)  # a second Ctrl-C
        output = campaign.stdout.read()  # not `communicate`, which ignores what readline has read ahead
        assert campaign.stderr is not None
        complained = campaign.stderr.read()
        campaign.wait(60.0)
    finally:
        if campaign.poll() is None:
            os.killpg(campaign.pid, signal.SIGKILL)
    assert campaign.returncode == 130
    assert re.search(r"^seeds 0 to \d+: ", output, re.M), output
    assert "Traceback" not in complained, complained


def test_a_reduced_failure_is_printed_with_the_shortest_command(capsys: pytest.CaptureFixture[str]) -> None:
    campaign = Campaign([], None, 1, None, reduce_s=60.0)
    campaign._take("make sim SEED=2 BROKERS=3", _values(Plan(2), "gap: 3") | {"shortest": "make sim SEED=2 ACTS=1"})
    campaign._take("make sim SEED=3 BROKERS=3", _values(Plan(3), "gap: 3") | {"shortest": "make sim SEED=3 BROKERS=3"})
    told = [line.strip() for line in capsys.readouterr().out.splitlines() if "reduced" in line]
    assert told == ["reduced: make sim SEED=2 ACTS=1"]
    assert campaign.failures == ["make sim SEED=2 BROKERS=3", "make sim SEED=3 BROKERS=3"]
