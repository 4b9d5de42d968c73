"""The only broker that can answer is asked again soon, even if it was slow or failed often."""

from __future__ import annotations

import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.running import client_of
from tests.fakes.manual_clock import ManualClock
from tinymq.client.cluster.broker_health import AVOIDED, RECONNECT, SLOW, ClusterHealth
from tinymq.client.cluster.cluster import Cluster
from tinymq_chaos.sim.virtual.event_loop import VirtualClock, VirtualLoop, run_virtually

DEADLINE_S = 5.0  # of a send
SMALL = 0.1  # the fraction of the deadline that an earlier slow answer or failure may cost


@pytest.mark.parametrize("latency_s", [slow_s for slow_s, _ in SLOW])
def test_a_slow_answer_ranks_a_broker_lower_and_delays_no_attempt(latency_s: float) -> None:
    clock, health = ManualClock(), ClusterHealth()
    health.answered("a", latency_s, clock.monotonic())
    assert health.cost("a", clock.monotonic())[0] >= 2.0
    assert health.retry_s("a", clock.monotonic()) == 0.0
    assert not health.failing("a")


def test_failures_in_a_row_delay_the_next_attempt_by_a_fraction_of_a_second() -> None:
    clock, health = ManualClock(), ClusterHealth()
    waits_s = []
    for _ in range(20):
        health.failed("a", "connection refused", clock.monotonic())
        waits_s.append(health.retry_s("a", clock.monotonic()))
        clock.advance(waits_s[-1])
        assert health.retry_s("a", clock.monotonic()) == 0.0
    assert waits_s == sorted(waits_s)
    assert waits_s[0] < 0.05
    assert waits_s[-1] == RECONNECT.pause_s_max < AVOIDED.pause_s_max
    assert health.failing("a")
    health.answered("a", 0.001, clock.monotonic())
    assert not health.failing("a")


def test_a_slow_answer_after_failures_delays_no_attempt() -> None:
    clock, health = ManualClock(), ClusterHealth()
    for _ in range(20):
        health.failed("a", "connection refused", clock.monotonic())
    health.answered("a", 20.0, clock.monotonic())
    assert health.retry_s("a", clock.monotonic()) == 0.0


@pytest.mark.parametrize("how", ["slow", "failed"])
def test_a_leader_that_lost_its_connection_is_sent_to_soon(how: str) -> None:
    """Seed 65836513 of the simulator: a leader answered once after 1.8 s, then its connection broke.

    The client did not connect to it again for five seconds.
    """

    async def scenario(loop: VirtualLoop) -> None:
        cluster = FakeCluster()
        cluster.add_topic("t")
        clock = VirtualClock(loop)
        async with client_of(cluster, clock=clock, request_timeout_ms=DEADLINE_S * 1000) as mq:
            await mq.send("t", b"0")
            core = mq._connection._cluster
            assert isinstance(core, Cluster)
            if how == "slow":
                core.answered("fake:1", 2.0)
            for _ in range(20 if how == "failed" else 0):
                core.health.failed("fake:1", "connection refused", clock.monotonic())
            cluster.break_streams(1)
            started_s = loop.time()
            assert (await mq.send("t", b"1")).offset == 1
            assert loop.time() - started_s < SMALL * DEADLINE_S

    run_virtually(scenario)
