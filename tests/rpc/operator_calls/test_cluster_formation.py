"""Forming a cluster: once, completely, and only with the secret. A retry completes an interrupted attempt."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.fakes.raw_client import Raw
from tinymq.base.errors import BrokerUnreachable, InvalidRequest, OutcomeUnknown, WrongBroker, WrongCluster, WrongSecret
from tinymq.base.types import METADATA_GROUP
from tinymq.broker.cluster.formation import Formation
from tinymq.net.loopback_ports import free_ports
from tinymq.proto import tinymq_pb2 as pb
from tinymq.raft import Replica, make_first_entry
from tinymq.rpc.common.proof import form_proof
from tinymq.rpc.operator_calls import cluster_formation
from tinymq.rpc.operator_calls.cluster_formation import form_cluster
from tinymq.testing.cluster import SECRET, Cluster


def now_us() -> int:
    return time.time_ns() // 1000


def test_an_unformed_broker_says_so_and_forming_twice_is_once() -> None:
    async def main(cluster: Cluster) -> None:
        servers = cluster.servers.split(",")
        async with Raw(servers[0]) as raw:
            status = await raw.admin.ClusterStatus(pb.ClusterStatusRequest())
            assert (status.state, status.cluster_id, status.broker_id) == ("unformed", b"", 1)
            assert (await raw.topic("t")).error.code == "NotReady"
            everything = await raw.broker.Metadata(pb.MetadataRequest(all=True))
            assert everything.error.code == "NotReady", "an empty list of topics or brokers would look like an answer"
            assert (await raw.send(b"t" * 16)).error.code == "NotReady"
            assert (await raw.fetch(b"t" * 16)).error.code == "NotReady"
            reply = await raw.admin.CreateTopic(pb.CreateTopicRequest(name="t", partitions=1, replication_factor=1))
            assert reply.error.code == "NotReady"
            assert (await raw.broker.OpenProducer(pb.OpenProducerRequest())).error.code == "NotReady"
        with pytest.raises(WrongSecret):
            await form_cluster(servers, b"not the secret of it", now_us())
        with pytest.raises(InvalidRequest):
            await form_cluster([*servers, servers[0]], SECRET, now_us())
        with pytest.raises(InvalidRequest):
            await form_cluster(servers[:1], SECRET, now_us())
        absent = f"127.0.0.1:{free_ports(1)[0]}"
        with pytest.raises(BrokerUnreachable, match=f"^{absent}: no answer "):
            await form_cluster([*servers[:2], absent], SECRET, now_us(), timeout_s=0.3)
        formed = await form_cluster(servers, SECRET, now_us())
        assert (formed.brokers, formed.newly) == ((1, 2, 3), (1, 2, 3))
        again = await form_cluster(servers, SECRET, now_us() + 5)
        assert (again.cluster_id, again.newly) == (formed.cluster_id, ())
        async with Raw(servers[0]) as raw:
            async with asyncio.timeout(20):
                while (await raw.admin.ClusterStatus(pb.ClusterStatusRequest())).metadata_leader == 0:
                    await asyncio.sleep(0.002)

    with Cluster(nodes=3, form=False) as cluster:
        asyncio.run(main(cluster))


def test_the_log_of_an_unformed_broker_says_how_to_form_a_cluster(caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(nodes=3, form=False) as cluster:
        cluster.wait_until(lambda: "if there is none: tinymq cluster init" in caplog.text)


def test_a_half_done_forming_is_completed() -> None:
    async def main(cluster: Cluster) -> None:
        servers = cluster.servers.split(",")
        async with Raw(servers[0]) as raw:
            incarnations = [app.host._store.identity.incarnation for app in (cluster.brokers[n] for n in (1, 2, 3))]
            entry = make_first_entry(METADATA_GROUP, [Replica(n + 1, i) for n, i in enumerate(incarnations)], 5)
            packed, nonce = entry.head + entry.payload, b"n" * 32
            proof = form_proof(SECRET, nonce, b"c" * 16, packed)
            form = pb.FormRequest(cluster_id=b"c" * 16, first_entry=packed, nonce=nonce, proof=proof)
            assert not (await raw.admin.Form(form)).HasField("error")
        await asyncio.to_thread(cluster.kill, 1)
        await asyncio.to_thread(cluster.run, cluster._start(1))
        formed = await form_cluster(servers, SECRET, now_us())
        assert (formed.cluster_id, formed.newly) == (b"c" * 16, (2, 3))
        await asyncio.to_thread(cluster.wait_until, lambda: cluster._knows(1, {1, 2, 3}))

    with Cluster(nodes=3, form=False) as cluster:
        asyncio.run(main(cluster))


def test_a_broker_that_does_not_answer_in_time_may_be_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(cluster: Cluster) -> None:
        servers = cluster.servers.split(",")
        form, silent = Formation.form, asyncio.Event()

        async def form_and_say_nothing(self: Formation, cluster_id: bytes, first_entry: bytes) -> None:
            await form(self, cluster_id, first_entry)
            if self.broker_id == 2:
                await silent.wait()

        with monkeypatch.context() as patch:
            patch.setattr(cluster_formation, "FORM_TIMEOUT_S_MIN", 0.0)
            patch.setattr(Formation, "form", form_and_say_nothing)
            with pytest.raises(OutcomeUnknown, match=servers[1]) as unknown:
                await form_cluster(servers, SECRET, now_us(), timeout_s=2.0)
        assert unknown.value.hint == "form the cluster again: that completes it"
        assert (await form_cluster(servers, SECRET, now_us())).brokers == (1, 2, 3)

    with Cluster(nodes=3, form=False) as cluster:
        asyncio.run(main(cluster))


@pytest.mark.parametrize(
    ("cluster_id", "incarnation", "brokers", "count", "error"),
    [
        (b"c" * 16, b"o" * 16, (1,), 0, WrongBroker),
        (b"c" * 16, None, (2,), 0, WrongBroker),
        (b"c" * 16, None, (1,), 1, WrongBroker),
        (b"c" * 16, None, (1, 2, 3), 0, InvalidRequest),
        (b"", None, (1,), 0, InvalidRequest),
        (bytes(16), None, (1,), 0, InvalidRequest),
    ],
)
def test_what_a_broker_does_not_accept(
    cluster_id: bytes,
    incarnation: bytes | None,
    brokers: tuple[int, ...],
    count: int,
    error: type[Exception],
) -> None:
    async def main(cluster: Cluster) -> None:
        own = cluster.brokers[1].host._store.identity.incarnation
        replicas = [Replica(n, own if incarnation is None else incarnation, count) for n in brokers]
        entry = make_first_entry(METADATA_GROUP, replicas, 5)
        async with Raw(cluster.address(1)) as raw:
            for packed in (entry.head + entry.payload, entry.head + entry.payload + b"x", b"nonsense"):
                proof = form_proof(SECRET, b"n", cluster_id, packed)
                form = pb.FormRequest(cluster_id=cluster_id, first_entry=packed, nonce=b"n", proof=proof)
                reply = await raw.admin.Form(form)
                assert reply.error.code in (error.__name__, "InvalidRequest")
                assert packed != entry.head + entry.payload or reply.error.code == error.__name__
            unproven = pb.FormRequest(cluster_id=b"c" * 16, first_entry=b"", nonce=b"n", proof=b"guess")
            assert (await raw.admin.Form(unproven)).error.code == "WrongSecret"
            assert (await raw.admin.ClusterStatus(pb.ClusterStatusRequest())).state == "unformed"

    with Cluster(nodes=1, form=False) as cluster:
        asyncio.run(main(cluster))


def test_a_formed_broker_joins_no_other_cluster() -> None:
    async def main(cluster: Cluster) -> None:
        async with Raw(cluster.address(1)) as raw:
            for cluster_id, packed in ((b"o" * 16, b""), (None, b"another first entry")):
                status = await raw.admin.ClusterStatus(pb.ClusterStatusRequest())
                chosen = cluster_id or status.cluster_id
                proof = form_proof(SECRET, b"n", chosen, packed)
                form = pb.FormRequest(cluster_id=chosen, first_entry=packed, nonce=b"n", proof=proof)
                assert (await raw.admin.Form(form)).error.code == "WrongCluster"

    with Cluster(nodes=1) as cluster:
        asyncio.run(main(cluster))


def test_brokers_of_two_clusters_are_not_mixed() -> None:
    described = [
        pb.DescribeSelfReply(broker_id=n, incarnation=bytes([n]) * 16, cluster_id=bytes([n]) * 16, first_entry=b"x")
        for n in (1, 2)
    ]
    with pytest.raises(WrongCluster):
        cluster_formation._agree(described, 5, lambda n: b"r" * n)
    full = [pb.DescribeSelfReply(broker_id=1, incarnation=b"i" * 16, empty=False)]
    with pytest.raises(InvalidRequest, match="not empty"):
        cluster_formation._agree(full, 5, lambda n: b"r" * n)
