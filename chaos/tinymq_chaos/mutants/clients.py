"""Mutants of the client: which broker it asks, and when it asks again."""

from __future__ import annotations

from tinymq.client.cluster.broker_health import ClusterHealth
from tinymq.client.produce.send_queue import SendQueue
from tinymq_chaos.mutants.mutant import Patches, mutant

PLACEMENT = "tests/client/produce/test_placement.py::test_"
HEALTH = "tests/client/cluster/test_broker_health.py::test_"


@mutant(
    "a slow leader is retried at once, because no other broker can replace it",
    test=f"{HEALTH}a_leader_that_lost_its_connection_is_sent_to_soon",
)
def slow_leaders_are_left_alone(p: Patches) -> None:
    p.replace(ClusterHealth.retry_s, lambda self, address, now_s: self.cost(address, now_s)[0])


@mutant(
    "unsent batches without a key leave a partition whose leader is lost",
    test=f"{PLACEMENT}what_waits_for_a_dead_broker_moves_and_what_is_bound_to_it_stays",
)
def waiting_batches_stay(p: Patches) -> None:
    p.replace(SendQueue.withdraw, lambda self: [])
