"""The fixture and the public client, used as in a test of an application."""

from __future__ import annotations

from tinymq.testing.cluster import Cluster

pytest_plugins = ["tinymq.testing.fixture"]


def test_a_users_own_test(tinymq_cluster: Cluster) -> None:
    client = tinymq_cluster.client()
    client.admin.create_topic("orders", partitions=3, replication_factor=3)
    sent = [client.send("orders", b"%d" % n, key=b"k") for n in range(20)]
    assert [s.offset for s in sent] == list(range(20))
    with client.reader("orders", start="earliest", replica="follower") as reader:
        messages = []
        while len(messages) < 20:
            messages += reader.poll(timeout=10)
    assert [m.value for m in messages] == [b"%d" % n for n in range(20)]
