"""One broker with its registry in memory: a small world, in which no process may end."""

from __future__ import annotations

import pytest

from tinymq_chaos.history import METADATA, Outcome
from tinymq_chaos.sim.__main__ import parse_options
from tinymq_chaos.sim.campaign.run import Plan, run
from tinymq_chaos.sim.faults import SINGLE


@pytest.mark.parametrize("workloads", [("idempotent", "partitions"), ("queues", "altered")], ids=" and ".join)
def test_a_broker_that_remembers_its_topics_alone_keeps_its_promises(workloads: tuple[str, ...]) -> None:
    plan = Plan(3, 1, 14.0, workloads, registry="memory", pace=0.5)
    result = run(plan)
    assert not result.anomalies, "\n".join([*result.anomalies, f"replay it: {plan.command}"])
    assert result.faults
    assert {*result.faults} <= {*SINGLE}
    assert result.history is not None
    assert {replica.broker for replica in result.history.replicas} == {1}
    assert len([c for c in result.history.of("send") if c.outcome is Outcome.OK]) > 50
    assert [c for c in result.history.of("add_partition") if c.outcome is Outcome.OK] or "altered" in workloads
    assert METADATA in {led.log for led in result.history.leaders.values()}, "its topics are not in it"


def test_a_registry_in_memory_is_an_option_of_make_sim() -> None:
    assert Plan(3, 1, registry="memory").command == "make sim SEED=3 BROKERS=1 REGISTRY=memory"
    assert parse_options(["--seed", "3", "--registry", "memory"]).registry == "memory"
