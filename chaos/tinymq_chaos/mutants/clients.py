"""Mutants of the client: which broker it asks, and when it asks again."""

from __future__ import annotations

from tinymq.client.health import Health
from tinymq_chaos.mutants.mutant import Patches, mutant

HEALTH = "tests/client/test_health.py::test_"


@mutant(
    "a leader that was slow once is asked again at once: nobody can stand in for it",
    test=f"{HEALTH}a_leader_that_lost_its_connection_is_sent_to_soon",
)
def slow_leaders_are_left_alone(p: Patches) -> None:
    p.set(Health, "retry_s", lambda self, address, now_s: self.cost(address, now_s)[0])
