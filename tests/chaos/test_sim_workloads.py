"""Workloads that need whole brokers: each does its calls, and its history suffices for the checkers."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.test_workloads import FAKED
from tinymq_chaos.checkers import Facts
from tinymq_chaos.history import METADATA, Call, History, Outcome
from tinymq_chaos.sim.campaign.run import Plan, run
from tinymq_chaos.workloads import WORKLOADS
from tinymq_chaos.workloads.capacity import FULL, FULL_BYTES, RETENTION_BYTES, ROOM, ROOM_BYTES

ON_BROKERS = (
    "cursors",
    "takers",
    "rush",
    "members",
    "workers",
    "keyed",
    "queues",
    "moved",
    "partitions",
    "volatile",
    "delayed",
    "toggled",
    "observed",
    "scheduled",
    "transfers",
    "lingering",
    "processors",
    "results",
    "halves",
)
BOUNDED = ("retained", "unreplicated", "sized", "room", "heavy", "full", "trimmed", "altered")
THREADED = ("crowd",)  # test_sim_threads.py
SECONDS = 14.0
SEED = 3


def told(workload: str, *faults: str, seconds: float = SECONDS, pace: float = 0.5, seed: int = SEED) -> History:
    """Return the history of one run, in which nothing is wrong."""
    plan = Plan(seed, seconds=seconds, workloads=(workload,), faults=faults, pace=pace)
    result = run(plan)
    assert not result.anomalies, "\n".join([*result.anomalies, f"replay it: {plan.command}"])
    assert result.history is not None
    return result.history


def done(history: History, *kinds: str) -> list[Call]:
    return [call for call in history.of(*kinds) if call.outcome is Outcome.OK]


def test_no_kind_is_left_out() -> None:
    assert {*FAKED, *ON_BROKERS, *BOUNDED, *THREADED} == {*WORKLOADS}


def test_delayed_records_are_delivered_or_canceled() -> None:
    history = told("scheduled", "kill", "isolate", pace=0.2)
    stored, cancels = done(history, "schedule"), done(history, "cancel")
    assert len(stored) > 20
    assert {call.result for call in cancels} == {True, False}
    canceled = {call.args["records"][0] for call in cancels if call.result}
    there = {name for replica in history.replicas for entry in replica.entries for name in entry.records}
    assert {call.args["records"][0] for call in stored} - canceled <= there


def test_transfers_end_in_every_way_while_their_ids_change_hands() -> None:
    history = told("transfers", "kill", "isolate", "trim", pace=0.3, seconds=18.0)
    ends = Counter(call.error or str(call.outcome) for call in history.of("transact"))
    assert ends[Outcome.OK] > 20, ends
    assert {"rolled back", "left", "TransactionAborted"} <= {*ends}
    assert "Fenced" in {call.error for call in history.of("begin_transaction", "commit_transaction")}
    assert {call.result for call in done(history, "commit_transaction")} == {True, False}
    assert {len(call.args["parts"]) for call in done(history, "transact")} == {1, 2, 3}
    assert len(done(history, "last_transfer")) == 2
    assert [call.result for call in done(history, "unfinished")] == [[]]


@pytest.mark.long
def test_transactions_linger_while_old_segments_go() -> None:
    history = told("lingering", "kill", "isolate", "trim", pace=0.5)
    ends = Counter(call.error or str(call.outcome) for call in history.of("transact"))
    assert ends[Outcome.OK] >= 4, ends
    assert ends["rolled back"] > 50, ends
    assert [call.result for call in done(history, "unfinished")] == [[]]
    firsts = [replica.entries[0] for replica in history.replicas if replica.entries]
    assert [entry for entry in firsts if entry.index > 1 and not entry.base_offset], "nothing but old batches is gone"


@pytest.mark.long  # below, jobs are processed by the same programs
def test_programs_read_process_and_write_and_end_in_every_way() -> None:
    history = told("processors", "kill", "isolate", pace=0.4, seconds=16.0)
    ends = Counter(call.error or str(call.outcome) for call in history.of("transact"))
    assert ends[Outcome.OK] > 20, ends
    assert {"rolled back", "left", "TransactionAborted"} <= {*ends}
    assert len({call.process for call in done(history, "transact")}) > 6
    assert {len(call.args["parts"]) for call in done(history, "transact")} == {1, 2}
    assert done(history, "group_seek")
    assert done(history, "revoked")
    assert len(done(history, "caught_up")) == 1
    assert [call.result for call in done(history, "unfinished")] == [[]]


def test_jobs_have_results_and_transactions_that_ack_them_end_in_every_way() -> None:
    history = told("results", "kill", "isolate", pace=0.6, seconds=16.0)
    ends = Counter(call.error or str(call.outcome) for call in history.of("transact"))
    assert ends[Outcome.OK] > 20, ends
    assert {"rolled back", "TransactionAborted"} <= {*ends}
    acks = Counter(call.outcome for call in history.of("settle") if call.args["verb"] == "ack")
    assert min(acks[outcome] for outcome in (Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN)) > 3, acks
    assert "nack" in {call.args["verb"] for call in history.of("settle")}
    assert max(call.args["delivery"] for call in history.of("job")) > 1
    assert any(change.staged for change in history.queues)
    assert done(history, "group_seek")
    assert len(done(history, "caught_up")) == 1
    assert [call.result for call in done(history, "unfinished")] == [[]]


def test_half_messages_are_committed_rolled_back_and_checked() -> None:
    history = told("halves", "kill", "isolate", pace=0.6, seconds=16.0)
    assert len(done(history, "half")) > 20
    assert "UnknownTopic" not in {call.error for call in history.of("half")}, "several made the coordinators at once"
    assert {call.args["commit"] for call in done(history, "end_half")} == {True, False}
    assert {"TransactionAborted", "InvalidRequest"} <= {call.error for call in history.of("end_half")}
    assert {call.result for call in done(history, "check_half")} >= {"commit", "rollback"}
    said = {call.args["records"][0] for call in history.of("end_half")}
    there = {name for replica in history.replicas for entry in replica.entries for name in entry.records}
    committed = {call.args["records"][0] for call in done(history, "check_half") if call.result == "commit"}
    assert committed & there - said, "their senders were silent"
    assert len(done(history, "halves_over")) == 1


def test_consumers_of_two_channels_commit_seek_and_fence_each_other() -> None:
    history = told("cursors", "kill")
    kinds = Counter(call.kind for call in done(history, "open_channel", "commit", "seek", "channels"))
    assert all(kinds[kind] >= 3 for kind in ("open_channel", "commit", "seek", "channels")), kinds
    assert {call.args["channel"] for call in done(history, "commit")} == {"red", "blue"}
    assert max(call.args["offset"] for call in done(history, "commit")) > 5
    assert "Fenced" in {call.error for call in history.of("commit", "seek", "read")}


@pytest.mark.long
def test_members_of_a_group_commit_leave_and_come_back() -> None:
    history = told("members", "kill")
    kinds = Counter(call.kind for call in done(history, "assigned", "revoked", "group_commit", "group_lag"))
    assert all(kinds[kind] >= 3 for kind in ("assigned", "revoked", "group_commit", "group_lag")), kinds
    assert max(position for call in done(history, "group_lag") for _, position in call.result) > 3


@pytest.mark.parametrize("workload", [pytest.param("workers", marks=pytest.mark.long), "keyed"])  # of the same draws
def test_workers_settle_in_every_way_while_their_group_is_moved_and_deleted(workload: str) -> None:
    missing = {"group_seek", "group_delete", "trim", "add_partition"}  # draws of a workload: a run has most of them
    for seed in range(1, 6):
        history = told(workload, "kill", pace=0.4, seconds=18.0, seed=seed)
        missing -= {call.kind for call in done(history, *missing)}
        if not missing:
            break
    assert not missing
    assert {call.args["verb"] for call in done(history, "settle")} == {"ack", "nack", "reject"}
    assert {call.args["delivery"] for call in history.of("job")} >= {1, 2, 3}
    assert done(history, "work_off")
    assert done(history, "dead_letters")[0].result
    assert len(history.queues) > 100
    assert {lease.what for lease in history.leases} == {"leads", "attached", "granted", "confirmed", "ended"}


def test_takers_share_a_channel_and_ask_again() -> None:
    history = told("takers", "client_reset", "kill", pace=0.2)
    taken = [call for call in done(history, "consume") if call.result is not None]
    requests = Counter(call.args["request"] for call in taken)
    assert len({call.process for call in taken}) == 3
    assert len(requests) > 20
    assert max(requests.values()) > 1
    assert sum(bool(call.result[1]) for call in taken) > 20


def test_stale_commits_and_commits_behind_the_end_are_refused() -> None:
    history = told("rush", "client_reset", seed=1)  # with seed 3 no commit comes late enough to be out of range
    assert len(done(history, "commit")) > 20
    assert done(history, "seek")
    assert done(history, "seek_again")
    assert {"Fenced", "OffsetOutOfRange"} <= {call.error for call in history.of("commit")}


def test_callers_without_a_client_produce_take_fetch_and_count() -> None:
    history = told("queues", "client_reset", "kill", pace=0.3)
    assert {call.args["acks"] for call in done(history, "send")} == {"quorum", "leader"}
    taken = [call for call in done(history, "consume") if call.result is not None]
    assert {call.args["channel"] for call in taken} == {"named", "unnamed"}
    assert max(Counter(call.args["request"] for call in taken).values()) > 1
    assert {call.args["partition"] for call in taken} > {0, 1}
    assert len([call for call in done(history, "size") if call.result]) > 5
    assert len([call for call in done(history, "fetch") if call.result[0] is not None]) > 5
    assert done(history, "delete_partition")


def test_leaders_are_moved_by_hand_under_load() -> None:
    history = told("moved", "kill", pace=0.4)
    moves = done(history, "transfer")
    assert {call.result for call in moves} == {1, 2, 3}
    assert [call for call in moves if call.args["to"] is None]
    assert len([call for call in moves if call.args["to"] == call.result]) > 10
    assert len(done(history, "send")) > 100


def test_every_question_of_an_admin_is_answered() -> None:
    history = told("observed", "kill", pace=0.5)
    kinds = ("status", "topics", "brokers", "feature_level", "kept", "holds", "scan", "hold", "release")
    assert [kind for kind in kinds if not done(history, kind)] == []
    assert [call for call in done(history, "holds") if call.result]
    assert [call for call in done(history, "scan") if call.result[0]]


def test_partitions_come_and_go() -> None:
    history = told("partitions", "kill")
    assert len(done(history, "add_partition")) > 3
    assert done(history, "delete_partition")


def starts(history: History) -> list[int]:
    return [log_start for call in done(history, "offsets") for _, log_start, _ in call.result]


def test_old_records_are_removed_and_held_records_stay() -> None:
    history = told("retained", "kill", seconds=24.0)
    assert starts(history)[-1] > starts(history)[0]
    assert done(history, "hold")
    assert done(history, "release")


def test_a_room_is_full_and_has_room_for_more() -> None:
    history = told("room", "kill", pace=0.2)
    assert starts(history)[-1] > ROOM
    ends = [(log_start, end) for call in done(history, "offsets") for _, log_start, end in call.result]
    assert max(end - start for start, end in ends) > ROOM - 15
    assert done(history, "hold")


def kept_bytes(history: History) -> list[int]:
    """Return the bytes of the one partition at every look."""
    facts = Facts(history)
    return [
        weight
        for look, log, start, end in facts.ends()
        if (weight := facts.weight(log, start, end, look.invoked_s)) is not None
    ]


@pytest.mark.long  # above, old records go by the same rule
def test_so_many_bytes_are_kept_and_little_more() -> None:
    history = told("sized", "kill", pace=0.2)
    assert starts(history)[-1] > starts(history)[0]
    looks = kept_bytes(history)
    later = looks[len(looks) // 2 :]
    assert RETENTION_BYTES <= min(later) < 2 * RETENTION_BYTES  # what comes between two checks waits for the next one


@pytest.mark.long  # above, a bound on records works by the same rule
def test_bytes_are_bounded() -> None:
    history = told("heavy", "kill", pace=0.2)
    assert starts(history)[-1] > 0
    assert ROOM_BYTES / 2 < max(kept_bytes(history)) <= ROOM_BYTES


def test_a_full_partition_refuses_writes_until_a_trim_makes_room() -> None:
    history = told("full", "kill", seconds=30.0, pace=2.0)
    assert len({call.args["topic"] for call in history.of("send") if call.error == "QuotaExceeded"}) == 2
    assert max(kept_bytes(history)) > FULL_BYTES - 4_000
    assert len([call for call in done(history, "trim") if call.result]) > 1
    assert len(done(history, "send")) > FULL


def test_heads_are_trimmed_while_others_read() -> None:
    history = told("trimmed", "kill", pace=0.4)
    assert len({call.result for call in done(history, "trim")}) > 10
    assert {"OffsetOutOfRange", "Held"} <= {call.error for call in history.of("trim")}
    assert len(done(history, "size")) > 10
    assert done(history, "hold")


def test_settings_are_altered_while_they_count() -> None:
    history = told("altered", "isolate", seconds=30.0, pace=0.7)
    given = {(name, value) for call in done(history, "alter_topic") for name, value in call.args["settings"].items()}
    assert given >= {("retention_ms", "1500"), ("retention_ms", "none"), ("max_records", "6"), ("max_records", "60")}
    assert len({value for call in done(history, "settings") for value in call.result.values()}) > 5
    begins = {call.args["topic"] for call in done(history, "offsets") for _, log_start, _ in call.result if log_start}
    assert len(begins) == 3
    assert "QuotaExceeded" in {call.error for call in history.of("send")}


@pytest.mark.parametrize(
    ("workload", "fault", "loses"),
    [
        pytest.param("volatile", "kill", False, marks=pytest.mark.long),  # less than the next one
        ("volatile", "kill_all", True),
        ("delayed", "kill_all", False),
        ("delayed", "power_cut_all", True),
        ("toggled", "power_cut_all", True),
    ],
)
def test_topics_that_promise_less_lose_with_a_majority_alone(workload: str, fault: str, *, loses: bool) -> None:
    history = told(workload, fault, pace=0.3)
    assert len(done(history, "send")) > 20
    assert bool(history.revivals) is loses
    for revival in history.revivals:
        ends = [end for at_s, end in history.commits[revival.log] if at_s >= revival.at_s]
        assert ends[-1] > ends[0], "what is committed is followed from then on"


@pytest.mark.parametrize(("seed", "joined"), [pytest.param(1, [], marks=pytest.mark.long), (3, [4, 5])])
def test_half_of_the_larger_clusters_have_grown(seed: int, joined: list[int]) -> None:
    """Brokers beyond three voters join during formation, and hold partitions like the others."""
    result = run(Plan(seed, nodes=5, seconds=12.0, workloads=("lone",), faults=("kill",)))
    assert not result.anomalies, result.anomalies
    assert result.history is not None
    replicas = result.history.replicas
    assert [r.broker for r in replicas if r.log == METADATA and r.role == "observer"] == joined
    assert {r.broker for r in replicas if r.log != METADATA} & {4, 5}
