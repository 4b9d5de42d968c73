"""The figures of a peer's trials, and their table."""

import pytest

from tinymq_chaos.checkers import Anomaly, AnomalyKind
from tinymq_chaos.history import History
from tinymq_chaos.real.peers import loop_disk
from tinymq_chaos.real.peers.__main__ import main, table
from tinymq_chaos.real.peers.trial import Trial, TrialPlan, measure


def trial(seed, sync="2m", **values):
    return Trial(TrialPlan(seed, ("kill_all",), sync=sync), "nats 1.0", faults=["kill_all: brokers 1, 2, 3"], **values)


def test_a_row_for_each_kind_of_trial_and_records_are_counted():
    lost = Anomaly(AnomalyKind.LOST_WRITE, "gone", records=("a-1", "a-2"))
    found = [
        trial(1, acknowledged=1000, unknown=3, pause_s=4.0, anomalies=[lost]),
        trial(2, acknowledged=2000, failed=5, pause_s=8.0, anomalies=[lost, Anomaly(AnomalyKind.GAP, "a hole")]),
        trial(1, sync="always", acknowledged=10),
    ]
    _, _, first, second = "\n".join(table(found)).split("\n")
    assert first == "| kill_all | 2m | 2 | 2 | 3,000 | 3 | 5 | 4 | 0 | gap: 1 | 6.0 s, 8.0 s |"
    assert second == "| kill_all | always | 1 | 1 | 10 | 0 | 0 | 0 | 0 | none | 0.0 s, 0.0 s |"


def test_a_pause_is_between_acknowledgements_of_one_partition_or_until_the_last_attempt():
    now = [0.0]
    history = History(lambda: now[0])
    for partition, at_s, end in [
        (0, 1.0, "ok"),
        (1, 1.5, "ok"),
        (1, 4.0, "unknown"),
        (1, 5.5, "ok"),
        (0, 6.0, "failed"),
    ]:
        call = history.invoke("p", "send", 10.0, topic="t#1", partition=partition, records=["r"])
        now[0] = at_s
        call.ok([partition, 0]) if end == "ok" else getattr(call, end)("Error")
    seen = trial(1)
    measure(seen, history)
    assert (seen.acknowledged, seen.unknown, seen.failed, seen.pause_s) == (3, 1, 1, 5.0)


def test_the_reach_of_losses_ends_at_the_next_fault():
    now = [0.0]
    history = History(lambda: now[0])
    for at_s in (10.0, 30.0):
        now[0] = at_s
        history.fault_ended(history.fault_began("kill_all", "all"))
    seen = trial(1, anomalies=[Anomaly(AnomalyKind.LOST_WRITE, "gone", times_s=(s,)) for s in (4.0, 8.0, 27.0)])
    measure(seen, history)
    assert seen.lost_s == 6.0


def test_a_plan_prints_the_command_that_repeats_it():
    plan = TrialPlan(7, ("kill_leader", "pause"), times=2, sync="always", before_s=45)
    assert plan.command == (
        "PYTHONPATH=chaos python -m tinymq_chaos.real.peers --seeds 7 --sync always --times 2 --before-s 45 "
        "--gap-s 6 --workloads idempotent,lone kill_leader,pause"
    )


@pytest.mark.parametrize("words", [["nonsense"], ["power_cut_all", "--sync", "never"], []])
def test_a_wrong_command_is_refused(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "error" in capsys.readouterr().err


def test_power_is_cut_only_on_disks_that_support_it(monkeypatch, capsys):
    monkeypatch.setattr(loop_disk, "why_not", lambda: "mounting needs root")
    with pytest.raises(SystemExit):
        main(["power_cut_all"])
    assert "mounting needs root" in capsys.readouterr().err
