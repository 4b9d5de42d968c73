"""A cluster of processes behind proxies: it forms, faults strike where they should, it reports its state, and it
ends."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path

import grpc
import pytest

from tests.chaos.real.checkout import OWN
from tests.chaos.real.sockets import dialled, inodes
from tinymq.base.config import parse_address
from tinymq.base.errors import NotReady
from tinymq.dev.process import Process, start_time
from tinymq.metrics.watched import METADATA
from tinymq.net.loopback_ports import is_free
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.tinymq_pb2_grpc import QueueServiceStub
from tinymq_chaos.real.cluster.cluster import Cluster, as_toml
from tinymq_chaos.real.processes.children import Child
from tinymq_chaos.real.system.target import CLIENTS, Target

DEADLINE_S = 30.0
TOPIC = "t"
HARNESS = """
import sys
from pathlib import Path
from tinymq_chaos.real.cluster.cluster import Cluster
cluster = Cluster(Path(sys.argv[1]), 3)
cluster.start(1, 2)
cluster.pause(2)
proxies = [proxy._child.pid for proxy in cluster.net._proxies.values()]
print(cluster.pid(1), cluster.pid(2), *proxies, flush=True)
sys.stdin.readline()
"""


def wait(holds: Callable[[], object], what: Callable[[], str] = str) -> None:
    deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while not holds():
        assert time.monotonic() < deadline, what()
        pause.wait(0.02)


async def _make_topic(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.admin.create_topic(TOPIC, 3, 3)
        await client.send(TOPIC, b"first")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), 3) as cluster:
        cluster.up()
        asyncio.run(_make_topic(cluster))
        cluster.wait_healthy()
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """A cluster on which all is well before each test; otherwise the test before it is the cause."""
    yield shared
    shared.net.mend_all()
    shared.resume(*shared.brokers)
    shared.start(*(b for b in shared.brokers if not shared.running(b)))
    shared.wait_healthy()


def hears(cluster: Cluster, broker: int, other: int) -> bool | None:
    """Return whom a broker hears, by its own report; None: it reports nothing."""
    peers = (cluster.status(broker) or {"peers": []})["peers"]
    return next((peer["alive"] for peer in peers if peer["broker"] == other), None)


def deaf(cluster: Cluster) -> set[tuple[int, int]]:
    """Return (a, b) where b does not hear a."""
    return {(a, b) for a, b in permutations(cluster.brokers, 2) if hears(cluster, b, a) is False}


def test_the_stage_is_a_target(cluster: Cluster) -> None:
    target: Target = cluster
    assert (target.name, target.brokers) == ("tinymq", (1, 2, 3))
    assert cluster.unhealthy() == ""
    assert target.version in str(cluster.status(1))


def test_clients_learn_only_proxy_addresses(cluster: Cluster) -> None:
    async def told() -> list[str]:
        async with cluster.client() as client:
            return [broker.address for broker in (await client.admin.cluster_status()).brokers]

    assert sorted(asyncio.run(told())) == sorted(cluster.servers.split(","))
    assert not set(cluster.servers.split(",")) & set(cluster.direct.split(","))


def test_every_connection_to_a_broker_is_one_of_its_proxies(cluster: Cluster) -> None:
    asyncio.run(_write(cluster))
    for a, b in [*permutations(cluster.brokers, 2), *((CLIENTS, b) for b in cluster.brokers)]:
        child = cluster.net._proxies[a, b]._child
        assert child is not None
        own = cluster._own[b].clients if a == CLIENTS else cluster._own[b].brokers
        port = parse_address(own)[1]
        others = [each for pair, each in cluster.net._proxies.items() if pair[1] == b]
        allowed = {inode for proxy in others if proxy._child for inode in inodes(proxy._child.pid)}
        there = {inode for to, inode in dialled() if to == port}
        assert there <= allowed, f"somebody dials broker {b} without a proxy"
        if a != CLIENTS:
            assert there & inodes(child.pid), f"broker {a} does not reach broker {b} through their proxy"


def test_records_go_to_the_stream_port_through_the_proxy_of_clients(cluster: Cluster) -> None:
    async def write() -> None:
        async with cluster.client() as client:
            await client.send(TOPIC, b"by the stream port", partition=0)
            leader = cluster.leader(TOPIC, 0)
            assert leader is not None
            child = cluster.net._proxies[CLIENTS, leader]._child
            assert child is not None
            port = parse_address(cluster._own[leader].streams)[1]
            there = {inode for to, inode in dialled() if to == port}
            assert there
            assert there <= inodes(child.pid)

    asyncio.run(write())


def test_a_message_is_passed_on_through_the_proxy_between_the_two(cluster: Cluster) -> None:
    passed: list[tuple[int, int]] = []
    wait(lambda: passed or passed.extend(_passed_on(cluster)) or passed)  # a busy machine may elect another leader
    other, leader = passed[0]
    child = cluster.net._proxies[other, leader]._child
    assert child is not None
    port = parse_address(cluster._own[leader].clients)[1]
    assert {inode for to, inode in dialled() if to == port} & inodes(child.pid)


def _passed_on(cluster: Cluster) -> Iterator[tuple[int, int]]:
    """Return (broker that was asked, leader), once the leader has stored what the broker was sent."""
    leader = cluster.leader(TOPIC, 0)
    assert leader is not None
    other = next(b for b in cluster.brokers if b != leader)
    with grpc.insecure_channel(cluster._own[other].clients, [("grpc.enable_http_proxy", 0)]) as channel:
        message = pb.ProduceMessageRequest(topic=TOPIC, queue=0, value=b"passed on")
        with contextlib.suppress(grpc.RpcError):
            QueueServiceStub(channel).ProduceMessage(message, timeout=DEADLINE_S)
            yield other, leader


async def _write(cluster: Cluster) -> None:
    async with cluster.client() as client:
        for _ in range(10):
            await client.send(TOPIC, b"x")


@pytest.mark.parametrize("direction", list(permutations((1, 2, 3), 2)))
def test_each_direction_can_be_cut_alone(cluster: Cluster, direction: tuple[int, int]) -> None:
    a, b = direction
    cluster.net.cut("why", [direction])
    wait(lambda: deaf(cluster) == {direction}, lambda: f"{deaf(cluster)}")
    assert f"broker {b} does not hear {a}" in cluster.unhealthy()
    cluster.net.mend("why")
    wait(lambda: not deaf(cluster))


def test_a_cut_holds_for_a_restarted_broker_and_a_broker_that_does_not_stop_is_killed(cluster: Cluster) -> None:
    cluster.net.cut("why", [(1, 2)])
    cluster.pause(2)
    with pytest.raises(RuntimeError, match="broker 2 did not stop within 0 s"):
        cluster.stop(2, within_s=0.2)
    assert not cluster.running(2)
    cluster.start(2)
    wait(lambda: hears(cluster, 2, 3) and hears(cluster, 3, 2))
    # a new connection needs both directions, as on any network; broker 1 finds out in time that the old one is gone
    wait(lambda: deaf(cluster) == {(1, 2), (2, 1)}, lambda: f"{deaf(cluster)}")


def test_clients_are_cut_off_from_one_broker(cluster: Cluster) -> None:
    async def reached() -> set[int]:
        async with cluster.client() as client:
            brokers = (await client.admin.cluster_status(timeout=4.0)).brokers
            return {broker.broker_id for broker in brokers if broker.state == "running"}

    assert asyncio.run(reached()) == {1, 2, 3}
    cluster.net.cut("why", [(3, CLIENTS)])
    assert asyncio.run(reached()) == {1, 2}
    assert cluster.unhealthy() == "", "brokers are not clients, nor is who asks how they are"


def test_a_paused_broker_runs_and_does_not_answer(cluster: Cluster) -> None:
    cluster.pause(2)
    assert cluster.running(2)
    assert cluster.status(2) is None
    assert "broker 2 does not answer" in cluster.unhealthy()
    wait(lambda: hears(cluster, 1, 2) is False)
    cluster.resume(2)
    wait(lambda: hears(cluster, 1, 2))


def test_a_killed_leader_is_replaced_and_a_killed_cluster_returns_with_one_empty_disk(
    cluster: Cluster,
) -> None:
    leader = cluster.leader(TOPIC, 0)
    assert leader is not None
    cluster.kill(leader)
    assert not cluster.running(leader)
    assert f"broker {leader} is down" in cluster.unhealthy()
    wait(lambda: cluster.leader(TOPIC, 0) not in (None, leader), cluster.unhealthy)
    cluster.kill(*cluster.brokers)
    assert not any(map(cluster.running, cluster.brokers))
    assert cluster.leader(METADATA, 0) is None
    cluster.wipe(leader)
    assert not cluster.data(leader).exists()
    cluster.wipe(leader)
    cluster.start(*cluster.brokers)
    cluster.wait_healthy()
    assert cluster.data(leader).exists()


def test_a_second_process_on_a_copy_is_refused_by_the_brokers_that_hear_the_first(cluster: Cluster) -> None:
    cluster.wait_healthy()
    before = cluster.leader(TOPIC, 0)
    cluster.start_second(2, copied=True)
    log = next(cluster.folder.glob("second-2-*.log"))
    wait(lambda: log.read_text().count("another process of broker 2 is heard") >= 2)  # from both other brokers
    assert cluster.unhealthy() == ""
    assert cluster.leader(TOPIC, 0) == before
    cluster.end_second(2)


def test_the_timeout_names_the_missing_replicas(cluster: Cluster) -> None:
    cluster.pause(2)
    with pytest.raises(NotReady, match="broker 2 does not answer"):
        cluster.wait_healthy(within_s=0.1)


@pytest.mark.parametrize("nodes", [3, pytest.param(5, marks=pytest.mark.long)])  # 30 processes
def test_brokers_form_by_other_commands_and_with_settings_and_leave_no_process(tmp_path: Path, nodes: int) -> None:
    other = ["sh", "-c", 'echo by another command; exec "$@"', "sh", sys.executable, "-m", "tinymq.cli.main", "broker"]
    made = Cluster(
        tmp_path, nodes, settings={"rack": "r", "timing": {"leader_return_s": 3.0}}, commands={nodes: other},
        env={2: {"TINYMQ_RACK": "of broker 2"}},
    )  # fmt: skip
    with made:
        made.up()
        children: list[Child] = [*made._children.values()]
        children += [proxy._child for proxy in made.net._proxies.values() if proxy._child is not None]
        ports = [parse_address(address)[1] for address in f"{made.servers},{made.direct}".split(",")]
        assert len(children) == nodes + nodes + nodes * (nodes - 1)
        racks = {b: (made.status(b) or {})["rack"] for b in made.brokers}
        assert racks == dict.fromkeys(made.brokers, "r") | {2: "of broker 2"}
        assert tomllib.loads(made.config(1).read_text())["timing"] == {"leader_return_s": 3.0}
        assert [b for b in made.brokers if "by another command" in made.log_file(b).read_text()] == [nodes]
    made.close()
    assert not any(child.alive for child in children)
    assert all(map(is_free, ports))
    assert not made._sockets.exists()


def test_nothing_is_left_when_the_harness_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={"PYTHONPATH": OWN},
    ) as harness:  # fmt: skip
        assert harness.stdout is not None
        pids = [int(pid) for pid in harness.stdout.readline().split()]
        processes = [Process(pid, start_time(pid) or "") for pid in pids]
        assert all(process.alive for process in processes)
        harness.kill()
    assert len(processes) == 2 + 3 + 6
    wait(lambda: not any(process.alive for process in processes))


def test_an_error_names_the_broker_that_does_not_start_and_its_cause(tmp_path: Path) -> None:
    with Cluster(tmp_path, 1, settings={"rack": 7}) as cluster, pytest.raises(NotReady, match="broker 1 did not start"):
        cluster.up()


def test_numbers_of_brokers_that_no_cluster_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1, 3 or 5 brokers, not 4"):
        Cluster(tmp_path, 4)


def test_settings_as_a_file() -> None:
    values = {"a": 'x"y', "limits": {"b": 3}, "c": ["d", "e"], "f": True, "g": 0.5}
    assert tomllib.loads(as_toml(values)) == values
