"""tinymq's workloads, faults and checkers against independent servers: a NATS JetStream cluster."""

import asyncio
import time

import pytest

from tinymq_chaos.checkers import AnomalyKind, Facts
from tinymq_chaos.history import History, Outcome
from tinymq_chaos.real.net.network import CLIENTS
from tinymq_chaos.real.peers import nats_monitor as monitor
from tinymq_chaos.real.peers import trial as running
from tinymq_chaos.real.peers.nats import NatsCluster
from tinymq_chaos.real.peers.nats_names import sequence_of, stream_of
from tinymq_chaos.real.peers.nats_system import NatsSystem
from tinymq_chaos.real.peers.trial import TrialPlan, run
from tinymq_chaos.real.run.context import RealContext, SharedContext
from tinymq_chaos.real.system.verdict import Slack

WAIT_S = 60.0


def wait_until(condition, what, within_s=WAIT_S):
    asyncio.run(_until(condition, what, within_s))


async def _until(condition, what, within_s):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {within_s:g} s"
        await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    cluster = NatsCluster(tmp_path_factory.mktemp("nats"))
    try:
        cluster.start(*cluster.brokers)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def cluster(shared):
    """A cluster on which all is well when a test begins."""
    shared.start(*(broker for broker in shared.brokers if not shared.running(broker)))
    wait_until(lambda: not shared.unhealthy(), "health")
    return shared


@pytest.mark.timeout(180)
def test_a_killed_leader_under_load_is_judged(tmp_path, monkeypatch):
    """The test does not judge NATS, only that its behaviour was observed and checked."""
    monkeypatch.setattr(running, "QUIET_S", 0.5)
    plan = TrialPlan(seed=1, faults=("kill_leader",), sync="always", before_s=0.5, gap_s=0.0, workloads=("lone",))
    trial = asyncio.run(run(plan, tmp_path / "run", print))
    assert trial.problems == []
    assert [said.split(":")[0] for said in trial.faults] == ["kill_leader"]
    assert trial.acknowledged > 0
    with (tmp_path / "run" / "history.jsonl").open() as lines:
        history = History.read(lines)
    facts = Facts(history)
    killed_s = history.faults[0].began_s
    assert any(c.outcome is Outcome.OK and c.invoked_s > killed_s for c in history.of("send")), "writes never resumed"
    assert all(call.outcome is not Outcome.PENDING for call in history.calls)
    assert all(call.outcome is Outcome.OK for call in history.of("drain")), "readers came to the end"
    assert len(facts.replicas) == 2, "both partitions"
    assert all({replica.broker for replica in found} == {1, 2, 3} for found in facts.replicas.values())
    assert all(replica.entries for found in facts.replicas.values() for replica in found), "files were read"
    assert all(final.certain for final in facts.finals.values())
    assert any(led.term > 1 and led.at_s > killed_s for led in history.leaders.values()), "a new leader was seen"


@pytest.mark.timeout(180)
def test_a_message_that_the_test_removes_is_reported_lost(cluster):
    history = History(time.monotonic)
    subject = NatsSystem(cluster)
    lost = asyncio.run(_write_and_take_one_out(subject, history))
    subject.collect(history, ())
    found = [anomaly for checker in subject.checkers(Slack()) for anomaly in checker(Facts(history))]
    assert [anomaly.records for anomaly in found if anomaly.kind is AnomalyKind.LOST_WRITE] == [(lost,)]
    assert {anomaly.kind for anomaly in found} >= {AnomalyKind.LOST_WRITE, AnomalyKind.GAP}, (
        "and a hole is where it was"
    )


async def _write_and_take_one_out(subject, history):
    """Return the record that was removed."""
    around = SharedContext(
        seed=1, history=history, make_client=subject.client, make_caller=subject.caller, topics=[], pace=0.1
    )
    working = asyncio.create_task(subject.workloads["lone"](RealContext(around, "lone")))
    try:
        call = await _acknowledged(history, 20)
        partition, offset, *_ = call.result
        stream = stream_of(call.args["topic"].partition("#")[0], partition)
        client = subject.client()
        await client.wire.remove(stream, sequence_of(offset), 10)
        await client.close()
        await _acknowledged(history, 40)
        around.stop.set()
        await asyncio.wait_for(working, WAIT_S)
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await around.close()
    return call.args["records"][0]


async def _acknowledged(history, count):
    """Return the last send, once there are so many."""
    async with asyncio.timeout(WAIT_S):
        while len(found := [call for call in history.of("send") if call.outcome is Outcome.OK]) < count:
            await asyncio.sleep(0.02)
    return found[-1]


class Dials:
    """The log lines of connections through proxies, from now on.

    Servers open them every second to servers without a route.
    """

    def __init__(self, cluster):
        self._cluster = cluster
        self._known = {broker: cluster.log_file(broker).stat().st_size for broker in cluster.brokers}

    def least(self):
        """Return how often each server has connected to each other one, at least."""
        return min(
            self._said(broker).count(f"{self._cluster.net.address(broker, other)} - rid:")
            for broker in self._cluster.brokers
            for other in self._cluster.brokers
            if other != broker
        )

    def _said(self, broker):
        told = self._cluster.log_file(broker).read_bytes()[self._known[broker] :].decode()
        return "".join(f"{line}\n" for line in told.split("\n") if "Route connection created" in line)


@pytest.mark.timeout(180)
def test_servers_reach_each_other_and_are_reached_through_proxies_alone(shared):
    """Routes are enough to show it: an election after each restart would take seconds."""
    ids = [CLIENTS, *shared.brokers]
    shared.net.cut("all of it", [(a, b) for a in ids for b in ids if a != b])
    shared.kill(*shared.brokers)
    dialled = Dials(shared)
    shared.start(*shared.brokers)
    ports = [shared.listens[broker].monitor for broker in shared.brokers]
    wait_until(lambda: all(monitor.ask(port, "/varz") for port in ports), "life")
    wait_until(lambda: dialled.least() > 1, "a second try of each to reach each")
    assert [monitor.routes(port) for port in ports] == [set()] * len(ports)
    assert all(monitor.trouble(port) for port in ports), "no server alone is healthy"
    told = monitor.ask(ports[0], "/varz").get("connect_urls") or []
    assert told == [], "clients are told of no server that is not behind its proxy"
    shared.net.mend("all of it")
    wait_until(lambda: all(len(monitor.routes(port) or ()) == len(ports) - 1 for port in ports), "every route")


@pytest.mark.timeout(180)
def test_servers_stop_pause_and_start_on_request(shared):
    """The trial above shows that all is well again after a restart."""
    shared.start(*(broker for broker in shared.brokers if not shared.running(broker)))
    ports = {broker: shared.listens[broker].monitor for broker in shared.brokers}
    wait_until(lambda: all(monitor.ask(port, "/varz") for port in ports.values()), "life")
    shared.pause(1)
    assert shared.running(1)
    wait_until(lambda: monitor.ask(ports[1], "/varz") is None, "silence")
    assert "server 1" in shared.unhealthy()
    shared.resume(1)
    wait_until(lambda: monitor.ask(ports[1], "/varz"), "an answer")
    shared.stop(2)
    assert not shared.running(2)
    shared.wipe(2)
    assert not any(shared.data(2).iterdir())
    shared.kill(2, 3)
    assert not shared.running(3)
    shared.start(2, 3)
    wait_until(lambda: all(monitor.ask(port, "/varz") for port in ports.values()), "life")
