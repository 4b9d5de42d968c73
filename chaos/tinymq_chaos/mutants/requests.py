"""Mutants of the bounds on client requests: quotas, request ids, and what the broker remembers per client."""

from __future__ import annotations

from itertools import count
from typing import Any

from tinymq.broker.serve import messages, quotas
from tinymq.broker.serve.quotas import Rate
from tinymq.gateway import queue_service as queue
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant, replaces

QUOTAS = "tests/broker/serve/test_quotas.py::test_"
ASKED = Focus(faults=("client_reset", "kill", "isolate"), workloads=("queues",), pace=0.3)


@mutant("a client goes no faster than its quota", test=f"{QUOTAS}a_quiet_client_has_a_second_of_its_rate")
def clients_are_not_charged(p: Patches) -> None:
    p.replace(Rate.charge, lambda self, client, size: 0.0)


@mutant("a client's debt has a bound", test=f"{QUOTAS}one_huge_batch_waits_for_a_bounded_time")
def debts_have_no_bound(p: Patches) -> None:
    p.replace(quotas.bounded, lambda level, bytes_per_s: level)


@mutant("the number of remembered clients is bounded", test=f"{QUOTAS}the_number_of_stored_clients_is_bounded")
def clients_are_never_forgotten(p: Patches) -> None:
    p.replace(Rate.forget_oldest, lambda self: None)


@mutant("QueueService: a retry under its request id gets the same message", ASKED)
def request_ids_are_not_looked_at(p: Patches) -> None:
    numbers = count(1)
    p.replace(queue.request_key, lambda request_id: next(numbers).to_bytes(16, "little"))


@mutant("QueueService: a size counts what the channel has not read", ASKED)
def sizes_count_what_was_taken(p: Patches) -> None:
    p.replace(messages.size_of, lambda partition, channel: partition.high_watermark - partition.log_start)


@mutant(
    "13: QueueService: a leader counts a size after it has proved its leadership",
    test="tests/chaos/test_stale_sizes.py::test_only_a_leader_that_a_majority_confirms_counts_a_size",
)
@replaces(messages.prove_leading)
async def sizes_are_of_the_past(_: Any, partition: Any, timeout_s: float) -> None:
    if not partition.leading:
        raise partition.closed or partition.not_leader()
