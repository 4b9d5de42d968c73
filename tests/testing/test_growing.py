"""A cluster grows under load. Leaders return after a failure, but stay where an operator moved them."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from tinymq import Client
from tinymq.app.broker_app import BrokerApp
from tinymq.app.machine_env import MachineEnv
from tinymq.base.config import Timing
from tinymq.base.errors import InvalidRequest, NotReady, UnknownPartition, WrongBroker, WrongCluster
from tinymq.base.types import METADATA_GROUP
from tinymq.net.loopback_ports import free_ports
from tinymq.raft import Role
from tinymq.testing.cluster import Cluster

QUICK = Timing(leader_return_s=0.5)
RETURN_S = 0.2  # for a test that waits for several returns
PREFERRED = 0  # place among the replicas


class Traffic:
    """Sends numbered records to a topic on a thread of its own, until `end`."""

    def __init__(self, client: Client, topic: str) -> None:
        self.sent = 0
        self._over = threading.Event()
        self._producer = client.producer()
        self._topic = topic
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.002):
            self._producer.send(self._topic, b"%d" % self.sent).result(30.0)
            self.sent += 1

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        self._producer.close()


def values(client: Client, topic: str) -> list[int]:
    with client.reader(topic, start="earliest", end="latest") as reader:
        return sorted(int(record.value or b"") for record in reader)


def role(cluster: Cluster, broker_id: int) -> Role:
    return cluster.call(lambda: cluster.brokers[broker_id].host.groups[METADATA_GROUP].role)


def test_two_brokers_join_while_it_works_and_new_topics_use_them() -> None:
    with Cluster(3, timing=QUICK) as cluster:
        client = cluster.client()
        client.admin.create_topic("old", partitions=2, replication_factor=3)
        traffic = Traffic(client, "old")
        assert (cluster.add(), cluster.add()) == (4, 5)
        assert [role(cluster, n) for n in (4, 5)] == [Role.OBSERVER, Role.OBSERVER]
        topic = client.admin.create_topic("new", partitions=10, replication_factor=3)
        assert {p.leader for p in topic.partitions} == {1, 2, 3, 4, 5}
        newcomer = Client(cluster.address(4))  # it knows only the address of the new broker
        late = Traffic(newcomer, "new")
        cluster.wait_until(lambda: late.sent > 20 and traffic.sent > 20)
        cluster.kill(4)
        sent = late.sent
        cluster.wait_until(lambda: late.sent > sent + 20)
        cluster.start(4)
        traffic.end()
        late.end()
        newcomer.close()
        assert values(client, "old") == list(range(traffic.sent))
        assert values(client, "new") == list(range(late.sent))
        status = client.admin.cluster_status()
        assert [b.state for b in status.brokers] == ["running"] * 5


def test_a_joined_broker_needs_no_join_addresses() -> None:
    with Cluster(3, timing=QUICK) as cluster:
        client = cluster.client()
        cluster.add()
        client.admin.create_topic("t", partitions=4, replication_factor=3)
        config = dataclasses.replace(cluster._config(4), join=())
        cluster.stop(4)
        app = BrokerApp(config, MachineEnv())
        cluster.run(app.start())
        cluster.brokers[4] = app
        cluster.wait_until(lambda: cluster._knows(4, {1, 2, 3, 4}))
        assert role(cluster, 4) is Role.OBSERVER


def test_all_of_them_may_be_killed_and_come_back() -> None:
    with Cluster(3, timing=QUICK) as cluster:
        client = cluster.client()
        cluster.add()
        cluster.add()
        client.admin.create_topic("t", partitions=5, replication_factor=3)
        with client.producer() as producer:
            producer.send("t", b"1").result(30.0)
        for broker_id in range(1, 6):
            cluster.kill(broker_id)
        for broker_id in (5, 4):  # before any broker that could tell them each other's addresses
            cluster.run(cluster._start(broker_id))
        for broker_id in (3, 2, 1):
            cluster.run(cluster._start(broker_id))
        everyone = set(range(1, 6))
        cluster.wait_until(lambda: all(cluster._knows(b, everyone) for b in everyone))
        assert values(client, "t") == [1]


def test_one_that_lost_its_disk_joins_again_and_is_filled() -> None:
    with Cluster(3, timing=QUICK) as cluster:
        client = cluster.client()
        cluster.add()
        topic = client.admin.create_topic("t", partitions=4, replication_factor=3)
        with client.producer() as producer:
            for n in range(20):
                producer.send("t", b"%d" % n).result(30.0)
        cluster.kill(4)
        cluster.wipe(4)
        cluster.start(4)
        held = [p.partition for p in topic.partitions if 4 in p.replicas]
        groups = cluster.brokers[4].host.groups

        def whole() -> bool:
            roles = {g.partition: group.role for g, group in groups.items() if g.topic_id == topic.topic_id}
            return all(roles.get(p) in (Role.FOLLOWER, Role.LEADER) for p in held)

        assert held
        cluster.wait_until(whole)
        assert values(client, "t") == list(range(20))


def test_leaders_come_home_after_a_failure_and_writers_hardly_notice() -> None:
    with Cluster(3, timing=QUICK) as cluster:
        client = cluster.client()
        client.admin.create_topic("t", partitions=6, replication_factor=3)
        traffic = Traffic(client, "t")
        cluster.kill(1)
        cluster.wait_until(lambda: all(cluster.leader_of("t", p) not in (None, 1) for p in range(6)))
        cluster.start(1)
        homes = {p.partition: p.replicas[PREFERRED] for p in client.admin.describe_topic("t").partitions}
        cluster.wait_until(lambda: all(cluster.leader_of("t", p) == home for p, home in homes.items()))
        traffic.end()
        assert values(client, "t") == list(range(traffic.sent))


def test_a_manual_transfer_stays_until_the_preferred_broker_restarts() -> None:
    with Cluster(3, timing=Timing(leader_return_s=RETURN_S)) as cluster:
        client = cluster.client()
        topic = client.admin.create_topic("t", replication_factor=3)
        first = topic.partitions[0].replicas[PREFERRED]
        second = client.admin.transfer_leader("t", 0)
        assert second != first
        assert client.admin.transfer_leader("t", 0, second) == second, "it does already"
        later = cluster.call(lambda: cluster.brokers[second]._clock.monotonic()) + 4 * RETURN_S
        cluster.wait_until(lambda: cluster.brokers[second]._clock.monotonic() > later)
        assert cluster.call(lambda: cluster.leader_of("t")) == second
        cluster.stop(first)
        cluster.start(first)
        cluster.wait_until(lambda: cluster.leader_of("t") == first)


def test_an_impossible_transfer_is_refused_at_once() -> None:
    with Cluster(3, timing=QUICK) as cluster:
        client = cluster.client()
        cluster.add()
        topic = client.admin.create_topic("t", replication_factor=3)
        (outsider,) = {1, 2, 3, 4} - set(topic.partitions[0].replicas)
        with pytest.raises(InvalidRequest, match=f"broker {outsider} holds no replica"):
            client.admin.transfer_leader("t", 0, outsider)
        with pytest.raises(UnknownPartition):
            client.admin.transfer_leader("t", 7)
        last = topic.partitions[0].replicas[-1]
        cluster.kill(last)
        cluster.wait_until(lambda: not any(app.host.alive(last) for app in cluster.brokers.values()))
        with pytest.raises(NotReady, match=f"broker {last} is not alive"):
            client.admin.transfer_leader("t", 0, last)


def test_a_broker_of_one_cluster_is_not_taken_by_another() -> None:
    with Cluster(1) as here, Cluster(1) as there:
        here.add()
        config = here._config(2)
        there_voter = there._config(1).peer_listen
        here.stop(2)
        app = BrokerApp(dataclasses.replace(config, join=(there_voter,)), MachineEnv())
        here.run(app.start())
        error = here.run(app.wait_failed())
        here.run(app.stop())
        assert isinstance(error, WrongCluster)
        assert "belongs to another cluster" in error.message


def test_no_two_brokers_have_one_number() -> None:
    with Cluster(1, timing=Timing(join_s=0.5)) as cluster:
        cluster.add()
        for taken, kind in ((1, WrongBroker), (2, NotReady)):
            ports = free_ports(2)
            config = dataclasses.replace(
                cluster._config(2), broker_id=taken, data_dir=f"{cluster._config(2).data_dir}-again-{taken}",
                listen=f"127.0.0.1:{ports[0]}", peer_listen=f"127.0.0.1:{ports[1]}",
            )  # fmt: skip
            app = BrokerApp(config, MachineEnv())
            cluster.run(app.start())
            error = cluster.run(app.wait_failed())
            cluster.run(app.stop())
            assert isinstance(error, kind), error
