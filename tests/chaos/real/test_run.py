"""The phases of a run, what ends it, and what is kept of it; on a target of plain values."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.real.stand_in import StandIn, StandInNet
from tinymq_chaos.checkers import Checker
from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.history import History, Outcome
from tinymq_chaos.real import outcome
from tinymq_chaos.real.__main__ import command_of, fault_line, folder_problem, main, parse_options, unusable_options
from tinymq_chaos.real.faults import FAULTS
from tinymq_chaos.real.run import run as running
from tinymq_chaos.real.run import schedule
from tinymq_chaos.real.run.run import Run, RunPlan, RunResult
from tinymq_chaos.real.run.schedule import Act, Episode, plan
from tinymq_chaos.real.system.system import CollectedReplicas
from tinymq_chaos.real.system.verdict import Slack
from tinymq_chaos.real.systems import OFFERS
from tinymq_chaos.workloads.context import Context, Workload

DEADLINE_S = 20.0
PAUSE = Episode((Act("pause", {"broker": 1.0, "who": "anyone"}, 0.0, 0.02),), 0.0)


async def steps(context: Context) -> None:
    """A workload that counts until it is told to stop."""
    while not context.stop.is_set():
        context.history.invoke("w", "step", context.history.now() + 5).ok()
        await asyncio.sleep(0.005)
    context.history.invoke("w", "drained", context.history.now() + 5).ok()


async def breaks(context: Context) -> None:
    raise AssertionError("it is broken")


class Plain:
    """A system under test without processes."""

    has: frozenset[str] = frozenset()

    def __init__(self, workload: Workload = steps) -> None:
        self.target = StandIn()
        self.workloads: Mapping[str, Workload] = {"w": workload}
        self.collected = 0
        self.silent: list[str] = []

    def client(self, **settings: Any) -> Any:
        raise AssertionError("nobody asks for one")

    def caller(self, rng: Any) -> Any:
        raise AssertionError("nobody asks for one")

    def checkers(self, slack: Slack) -> Sequence[Checker]:
        def odd(facts: Facts) -> Iterator[Anomaly]:
            if self.collected != 1:
                yield Anomaly(AnomalyKind.GAP, "nothing was collected")

        return (odd,)

    def watch(self, history: History, hurt: Collection[int]) -> None:
        pass

    def collect(self, history: History, hurt: Collection[int]) -> CollectedReplicas:
        assert history.ended_s is not None
        self.collected += 1
        return CollectedReplicas(["collected"], self.silent)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "BEGIN_S", 0.01)
    monkeypatch.setattr(running, "END_S", 5.0)
    monkeypatch.setattr(running, "HEALED_S", 1.0)
    monkeypatch.setattr(running, "QUIET_S", 0.05)
    monkeypatch.setattr(running, "PROGRESS_S", 0.01)
    monkeypatch.setattr(RunResult, "slack", Slack(progress_s=-0.9))


def run(subject: Plain, plan_: RunPlan, interrupts: int = 0) -> RunResult:
    async def scenario() -> RunResult:
        loop = asyncio.get_running_loop()
        made = Run(plan_, subject, History(loop.time), lambda line: None)
        task = asyncio.create_task(made.run())
        for _ in range(interrupts):
            while not made.nemesis.under_way and not task.done():
                await asyncio.sleep(0)
            made.interrupt()
        return await task

    return asyncio.run(scenario())


def test_faults_then_calm_then_the_end() -> None:
    subject = Plain()
    result = run(subject, RunPlan(1, 30.0, episodes=(PAUSE, PAUSE)))
    history = result.history
    assert result.anomalies == []
    assert result.faults == {"pause": 2}
    assert result.notes == ["collected"]
    (drained,) = history.of("drained")
    assert history.calm_s is not None
    assert history.ended_s is not None
    assert history.faults[-1].ended_s is not None
    assert history.faults[-1].ended_s <= history.calm_s <= drained.invoked_s <= history.ended_s
    assert subject.target.unhealthy() == ""


@pytest.mark.parametrize(("progress_s", "waited"), [(60.0, True), (-0.9, False)])
def test_the_end_waits_until_every_partition_takes_writes_again_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, progress_s: float, waited: bool
) -> None:
    monkeypatch.setattr(RunResult, "slack", Slack(progress_s=progress_s))
    told_to_stop: list[bool] = []

    async def slow_to_write(context: Context) -> None:
        history = context.history
        send = history.invoke("w", "send", history.now() + 60, topic="t#00", partition=0, records=["w-0"])
        while history.calm_s is None or history.now() < history.calm_s + 0.5:
            await asyncio.sleep(0.005)
        send.ok([0, 0])
        told_to_stop.append(context.stop.is_set())
        await context.stop.wait()

    run(Plain(slow_to_write), RunPlan(1, 30.0, episodes=(PAUSE,)))
    assert told_to_stop == [not waited]


def test_a_workload_that_breaks_ends_the_run_at_once() -> None:
    subject = Plain(breaks)
    result = run(subject, RunPlan(1, 3600.0))
    assert len(result.anomalies) == 1
    assert "it is broken" in str(result.anomalies[0])
    assert subject.target.unhealthy() == ""


def test_a_run_that_is_interrupted_once_is_read_and_judged() -> None:
    subject = Plain()
    long = Episode((Act("kill_all", {}, 0.0, 3600.0),), 0.0)
    result = run(subject, RunPlan(1, 3600.0, episodes=(long,)), interrupts=1)
    assert result.interrupted
    assert result.anomalies == []
    assert subject.collected == 1
    assert subject.target.up == {1, 2, 3}
    assert [fault.ended_s is not None for fault in result.history.faults] == [True]


def test_a_run_that_is_interrupted_twice_ends_at_once_without_a_verdict() -> None:
    subject, entered, leave = Plain(), threading.Event(), threading.Event()

    def hangs(history: History, hurt: Collection[int]) -> CollectedReplicas:
        entered.set()
        leave.wait(DEADLINE_S)
        return CollectedReplicas()

    subject.collect = hangs  # type: ignore[method-assign]
    said: list[str] = []

    async def scenario() -> RunResult:
        loop = asyncio.get_running_loop()
        made = Run(RunPlan(1, 30.0, episodes=(PAUSE,)), subject, History(loop.time), said.append)
        task = asyncio.create_task(made.run())
        while not entered.is_set():
            await asyncio.sleep(0)
        for _ in range(3):
            made.interrupt()
        return await task

    try:
        result = asyncio.run(scenario())
    finally:
        leave.set()
    assert (result.judged, result.interrupted, result.anomalies) == (False, True, [])
    assert [line for line in said if "interrupted" in line] == [running.ONCE, running.TWICE]
    assert outcome.exit_of(result) == (130, "interrupted, and not judged")
    assert outcome.outcome_in_words(result).endswith("NOT JUDGED: the run ended before its history was checked")


def test_a_fault_that_begins_when_the_run_is_interrupted_is_waited_for_and_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cancelled thread does not end: its fault would begin after all faults were ended."""
    entered, leave = threading.Event(), threading.Event()
    stop = StandIn.pause

    def slowly(self: StandIn, *brokers: int) -> None:
        entered.set()
        leave.wait(DEADLINE_S)
        stop(self, *brokers)

    monkeypatch.setattr(StandIn, "pause", slowly)
    subject = Plain()

    async def scenario() -> RunResult:
        made = Run(RunPlan(1, 30.0, episodes=(PAUSE,)), subject, History(asyncio.get_running_loop().time), print)
        task = asyncio.create_task(made.run())
        while not entered.is_set():
            await asyncio.sleep(0)
        made.interrupt()
        for _ in range(3):  # the runner has heard of it
            await asyncio.sleep(0)
        leave.set()
        return await task

    result = asyncio.run(scenario())
    assert subject.target.stopped == set()
    assert [fault.ended_s is not None for fault in result.history.faults] == [True]
    assert (result.judged, result.anomalies, subject.collected) == (True, [], 1)
    assert outcome.exit_of(result) == (130, "interrupted, and nothing was wrong until then")


def test_a_machine_that_makes_the_harness_wait_is_a_cause_for_elections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LATE_S", -1.0)
    result = run(Plain(), RunPlan(1, 30.0, episodes=(PAUSE,)))
    said = [change.what for change in result.history.changes]
    assert any("the machine has made the harness wait" in what for what in said), said


def test_a_broker_without_a_report_at_the_end_is_an_anomaly() -> None:
    subject = Plain()
    subject.silent.append("broker 2 does not say how its replicas are")
    result = run(subject, RunPlan(1, 30.0, episodes=(PAUSE,)))
    assert result.anomalies == subject.silent
    assert outcome.exit_of(result) == (1, "anomalies")


def test_requests_that_did_not_happen_count_as_untested() -> None:
    done = run(Plain(), RunPlan(1, 30.0, ("pause",), episodes=(PAUSE,)))
    assert outcome.untested(done) == []
    assert outcome.exit_of(done) == (0, "nothing was wrong")
    never = run(Plain(), RunPlan(1, 30.0, ("pause", "kill_leader"), episodes=(PAUSE,)))
    assert outcome.untested(never) == ["kill_leader: it never happened"]
    assert outcome.exit_of(never) == (1, "something that was asked for was not tested")
    assert "NOT TESTED kill_leader: it never happened" in outcome.outcome_in_words(never)
    never.history.faults[0].effect = ""
    assert outcome.untested(never)[1] == "pause: it did nothing that could be seen"
    done.history.invoke("p", "send", 1.0, records=["p-0"]).failed("DeadlineExceeded")
    assert outcome.untested(done) == ["writes: no record was acknowledged"]
    for call in done.history.calls:
        call.outcome = Outcome.FAILED
    assert outcome.untested(done) == ["workloads: no call was answered"]


def test_brokers_that_do_not_come_back_are_an_anomaly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "HEALED_S", 0.05)
    subject = Plain()
    subject.target.ill = "a replica is missing"
    result = run(subject, RunPlan(1, 30.0, episodes=()))
    assert result.anomalies == ["not healed: a replica is missing"]


def test_a_plan_is_its_seeds() -> None:
    def first(seed: int) -> list[Episode]:
        episodes = plan(seed, FAULTS)
        return [next(episodes) for _ in range(len(FAULTS) + 20)]

    assert first(1) == first(1)
    assert first(1) != first(2)
    once, pairs = first(1)[: len(FAULTS)], first(1)[len(FAULTS) :]
    assert [episode.acts[0].kind for episode in once] == [*FAULTS]
    assert all(len({act.kind for act in episode.acts}) == 2 for episode in pairs)
    assert all(sum(FAULTS[act.kind].real.damages for act in episode.acts) < 2 for episode in pairs)


def test_a_plan_of_one_kind_has_no_pairs() -> None:
    episodes = plan(1, {"pause": FAULTS["pause"]})
    assert all(len(next(episodes).acts) == 1 for _ in range(5))


def test_an_impossible_fault_is_retried_and_then_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "GAP_S", 0.01)  # between two attempts
    episode = Episode((Act("kill_leader", {}, 0.0, 0.01),), 0.01)
    result = run(Plain(), RunPlan(1, 30.0, episodes=(episode, PAUSE)))
    assert result.never == ["kill_leader"]
    assert result.faults == {"pause": 1}


class TopicMaker:
    """A client that creates topics without a cluster."""

    def __init__(self) -> None:
        self.admin = self

    async def create_topic(self, *args: Any, **settings: Any) -> None:
        pass

    async def close(self) -> None:
        pass


class Writing(Plain):
    """A system under test with a topic, so that there is a partition to lead."""

    def __init__(self) -> None:
        super().__init__(self._write)

    def client(self, **settings: Any) -> TopicMaker:
        return TopicMaker()

    async def _write(self, context: Context) -> None:
        await context.topic()
        await steps(context)


LEADER_PAUSED = Episode((Act("pause", {"broker": 0.0, "who": "leader"}, 0.0, 0.0, until_replaced=True),), 0.0)


def test_a_fault_goes_on_until_another_broker_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter((2, 2, None, 2, 3))  # while the fault is chosen, while it is verified, and while it lasts
    monkeypatch.setattr(schedule, "POLL_S", 0.001)
    monkeypatch.setattr(StandIn, "leader", lambda self, topic, partition: next(answers))
    result = run(Writing(), RunPlan(1, 30.0, episodes=(LEADER_PAUSED,)))
    assert result.anomalies == []
    assert result.faults == {"pause": 1}
    assert next(answers, "all were asked for") == "all were asked for"


def test_a_leader_without_a_successor_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "REPLACED_S_MAX", 0.05)
    monkeypatch.setattr(StandIn, "leader", lambda self, topic, partition: 2)
    result = run(Writing(), RunPlan(1, 30.0, episodes=(LEADER_PAUSED,)))
    assert ["TimeoutError" in str(anomaly) for anomaly in result.anomalies] == [True]


def test_a_short_run_has_faults_however_ill_the_cluster_is() -> None:
    subject = Plain()
    subject.target.ill = "a replica is missing"
    result = run(subject, RunPlan(1, 0.4, faults=("kill_all",)))
    assert result.faults == {"kill_all": 1}
    assert not [note for note in result.notes if "no time" in note]


def test_faults_without_time_are_reported() -> None:
    result = run(Plain(), RunPlan(1, 0.0, faults=("pause", "kill_all")))
    assert result.notes == ["no time was left for pause, kill_all", "collected"]
    assert "note: no time was left for pause, kill_all" in outcome.outcome_in_words(result)


def test_notes_name_ineffective_faults_hung_proxies_and_a_busy_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StandIn, "kill", lambda self, *brokers: None)
    monkeypatch.setattr(StandInNet, "restarts", 2)
    subject = Plain()
    result = run(subject, RunPlan(1, 30.0, episodes=(Episode((Act("kill_all", {}, 0.0, 0.01),), 0.0),)))
    hung = "2 times a proxy hung and was restarted, which closed its connections"
    assert result.notes == ["collected", "kill_all did nothing, 1 of 1 times", hung]
    result.crowd = 3.0
    assert (
        "judged with slack: the machine was busy (3.0 tasks for each processor); times were extended by a factor of 3.0"
        in (outcome.outcome_in_words(result))
    )
    outcome.write(tmp_path, result, subject.target, "make chaos SEED=1", "2026-01-01")
    said = json.loads((tmp_path / outcome.RUN).read_text())
    assert said["effects"] == [{"kind": "kill_all", "what": "brokers 1, 2, 3", "effect": ""}]
    assert (said["measures"]["proxy_restarts"], said["slack_times"]) == (2, 3.0)
    result.crowd = 0.5
    assert "judged loosely" not in outcome.outcome_in_words(result)


def test_a_stored_history_can_be_read_again(tmp_path: Path) -> None:
    subject = Plain()
    result = run(subject, RunPlan(7, 30.0, episodes=(PAUSE,)))
    result.anomalies.append(Anomaly(AnomalyKind.GAP, "for the test", ("t", 0), ("p-1",)))
    outcome.write(tmp_path, result, subject.target, "make chaos SEED=7", "2026-01-01")
    said = json.loads((tmp_path / outcome.RUN).read_text())
    assert (said["seed"], said["target"], said["nodes"], said["faults"]) == (7, "stand-in", 3, {"pause": 1})
    assert said["anomalies"][0]["records"] == ["p-1"]
    again = History.read((tmp_path / outcome.HISTORY).read_text().splitlines())
    assert again.faults == result.history.faults
    assert "ANOMALY gap: t/0: for the test (records p-1)" in outcome.outcome_in_words(result)


def test_the_command_repeats_the_plan() -> None:
    options = parse_options(["--fault", "pause,latency", "--minutes", "2", "--brokers", "5"])
    assert command_of(options, 7) == "make chaos SEED=7 FAULT=pause,latency MINUTES=2 BROKERS=5"
    assert command_of(parse_options(["--fault", "none"]), 1) == "make chaos SEED=1 FAULT=none"


@pytest.mark.parametrize(
    "words", [["--fault", "explode"], ["--brokers", "4"], ["--minutes", "-1"], ["--minutes", "inf"], ["--pace", "0"]]
)
def test_wrong_requests_are_reported(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert words[1] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--workload", "volatile,lone"], "tinymq: volatile cannot be judged here; idempotent, plain, lone"),
        (["--mutant", "nope"], "tinymq: no mutant is called nope"),
        (["--mutant", "no-pre-votes,nope"], "tinymq: no mutant is called nope"),
        (["--target", "nats", "--fault", "disk_full", "--brokers", "5"], "nats: disk_full needs disks; they are 3, "),
        (["--target", "nats", "--mutant", "no-pre-votes"], "nats: no mutant is one of them"),
        (["--folder", "/proc/x"], "/proc/x cannot be made: No such file"),
        (["--against", "no-such-run"], "no-such-run is no folder of a run"),
    ],
)  # fmt: skip
def test_impossible_requests_are_refused_before_the_start(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = [] if "--folder" in words else ["--folder", str(tmp_path / "run")]
    assert main([*words, *folder]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"exit code 2: {says}" in said
    assert not (tmp_path / "run").exists()


def test_possible_requests_are_accepted(tmp_path: Path) -> None:
    options = parse_options(["--fault", "pause", "--workload", "lone", "--mutant", "answers-when-appended"])
    assert unusable_options(options, OFFERS["tinymq"]()) == ""
    assert folder_problem(tmp_path / "new", None) == ""


@pytest.mark.parametrize("left", ["cluster", "history.jsonl"])
def test_a_folder_of_an_earlier_run_is_left_alone(tmp_path: Path, left: str) -> None:
    (tmp_path / left).mkdir()
    assert folder_problem(tmp_path, None) == f"{tmp_path} holds an earlier run ({left}): name another one, or remove it"


def test_the_list_of_kinds_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*FAULTS]
    assert fault_line("pause", FAULTS["pause"]).split() == [
        "pause", "process", "0.5", "or", "2", "or", "6", "s", "broker", "0;", "who", "leader,", "anyone",
    ]  # fmt: skip
    assert all(after != before for before, after in pairwise(lines))
