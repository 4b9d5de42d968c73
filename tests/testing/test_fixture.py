"""The fixtures and the public client, used as in tests of an application."""

from __future__ import annotations

import time

import pytest

from tinymq import Client
from tinymq.testing.cluster import Cluster

pytest_plugins = ["tinymq.testing.fixture"]

DEADLINE_S = 30.0


def test_a_users_own_test(tinymq_client: Client, tinymq_topic: str) -> None:
    sent = [tinymq_client.send(tinymq_topic, b"%d" % n, key=b"k") for n in range(20)]
    assert [s.offset for s in sent] == list(range(20))
    with tinymq_client.reader(tinymq_topic, end="latest", replica="follower") as reader:
        assert [m.value for m in reader] == [b"%d" % n for n in range(20)]


@pytest.mark.parametrize("kind", ["a/b", "c d"])
def test_each_test_has_a_topic_of_its_own(tinymq_client: Client, tinymq_topic: str, kind: str) -> None:
    assert [len(tinymq_client.admin.describe_topic(tinymq_topic).partitions)] == [3]
    assert sum(at.high_watermark for at in tinymq_client.admin.offsets(tinymq_topic).values()) == 0


def test_seven_days_pass_and_retention_follows(tinymq_cluster: Cluster, tinymq_client: Client) -> None:
    tinymq_client.admin.create_topic("kept", partitions=1, settings={"retention_ms": 6 * 86_400_000})
    tinymq_client.send("kept", b"old", partition=0)
    tinymq_cluster.clock.advance(days=7)
    tinymq_client.send("kept", b"new", partition=0)
    deadline = time.monotonic() + DEADLINE_S
    while tinymq_client.admin.offsets("kept")[0].log_start < 1:
        assert time.monotonic() < deadline, "the old record is still there"
    with tinymq_client.reader("kept", end="latest") as reader:
        assert [message.value for message in reader] == [b"new"]
    with pytest.raises(ValueError, match="ahead only"):
        tinymq_cluster.clock.advance(days=-1)


def test_a_leader_cut_from_the_others_is_replaced(
    tinymq_cluster: Cluster, tinymq_client: Client, tinymq_topic: str
) -> None:
    tinymq_client.send(tinymq_topic, b"before", partition=0)
    leader = tinymq_cluster.wait_leader(tinymq_topic)
    tinymq_cluster.partition({leader})
    assert tinymq_cluster.wait_leader(tinymq_topic, other_than=leader) != leader
    assert tinymq_client.send(tinymq_topic, b"after", partition=0).offset == 1
    tinymq_cluster.heal()


def test_a_slow_broker_costs_time_and_no_record(
    tinymq_cluster: Cluster, tinymq_client: Client, tinymq_topic: str
) -> None:
    tinymq_cluster.slow(1, milliseconds=20)
    assert [tinymq_client.send(tinymq_topic, b"", partition=0).offset for _ in range(3)] == [0, 1, 2]
    tinymq_cluster.restart(2)
    tinymq_cluster.heal()
    assert tinymq_client.send(tinymq_topic, b"", partition=0).offset == 3


def test_faults_of_one_seed_lose_nothing(tinymq_cluster: Cluster, tinymq_client: Client, tinymq_topic: str) -> None:
    sent = 0
    with tinymq_cluster.faults(seed=7) as faults:
        while len(faults.history) < 3:
            assert tinymq_client.send(tinymq_topic, b"%d" % sent, partition=0).offset == sent
            sent += 1
    assert set(tinymq_cluster.brokers) == {1, 2, 3}, "healed at the end"
    assert tinymq_client.admin.offsets(tinymq_topic)[0].high_watermark == sent


def test_an_error_in_the_block_names_the_seed_and_the_faults(tinymq_cluster: Cluster) -> None:
    with pytest.raises(KeyError) as raised, tinymq_cluster.faults(seed=3):
        raise KeyError
    assert raised.value.__notes__[0].startswith("faults with seed 3: ")
