"""Mutants of the client's workers of queue groups."""

from __future__ import annotations

from typing import Any

from tinymq.client.work.confirmation import Confirmation
from tinymq.client.work.job import JobState
from tinymq.client.work.partition_work import PartitionWork
from tinymq.proto import tinymq_pb2 as pb
from tinymq_chaos.mutants.mutant import Patches, mutant

RULES = "tests/client/work/test_partition_work.py::test_"


@mutant(
    "workers: grants of an earlier leader are dropped",
    test=f"{RULES}a_grant_of_an_earlier_leader_is_dropped",
)
def workers_take_any_grant(p: Patches) -> None:
    p.replace(PartitionWork.is_current, lambda self, grant: True)


@mutant(
    "workers: a record whose settlement has no answer counts as held",
    test=f"{RULES}a_job_whose_settlement_has_no_answer_is_listed",
)
def settled_jobs_are_not_listed(p: Patches) -> None:
    def attach(self: PartitionWork, attachment: int, now_s: float) -> pb.WorkAttach:
        self.held = {offset: job for offset, job in self.held.items() if job._state is not JobState.SETTLED}
        made: pb.WorkAttach = real(self, attachment, now_s)
        return made

    real = PartitionWork.attach
    p.replace(PartitionWork.attach, attach)


@mutant(
    "workers: a settled record answers an ack that was sent, and nothing else",
    test=f"{RULES}nothing_else_is_answered_by_a_settled_record",
)
def settled_records_answer_everything(p: Patches) -> None:
    p.replace(PartitionWork.is_answered, lambda self, job: True)


@mutant(
    "workers: one job of a key is out at a time, and none after one that failed",
    test=f"{RULES}one_job_of_a_key_is_out_at_a_time_and_none_after_a_failure",
)
def workers_know_no_keys(p: Patches) -> None:
    def on_attached(self: PartitionWork, reply: pb.WorkAttached) -> None:
        real(self, reply)
        self.keyed = False

    real: Any = PartitionWork.on_attached
    p.replace(PartitionWork.on_attached, on_attached)


@mutant(
    "workers: after the end of a session the worker attaches under a new one",
    test=f"{RULES}after_the_end_of_its_session_a_worker_has_another_one_and_nothing",
)
def ended_sessions_are_used_again(p: Patches) -> None:
    def on_ended(self: PartitionWork, error: Any) -> None:
        self.detached()

    p.replace(PartitionWork.on_ended, on_ended)


@mutant(
    "workers: a job is begun only while its leader has answered lately",
    test=f"{RULES}a_job_is_begun_only_while_the_leader_has_answered_lately",
)
def workers_begin_jobs_unconfirmed(p: Patches) -> None:
    p.replace(Confirmation.is_valid, lambda self, now_s: True)


@mutant(
    "workers: a job that is extended no more is not begun",
    test=f"{RULES}a_job_that_is_extended_no_more_is_not_begun_and_goes_back",
)
def workers_begin_jobs_that_they_do_not_extend(p: Patches) -> None:
    p.replace(PartitionWork.begins, lambda self, job, now_s: self.is_confirmed(now_s))
