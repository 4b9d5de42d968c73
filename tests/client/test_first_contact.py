"""A client that no broker has served: wrong addresses, brokers of an unformed cluster, names that are nearly right."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import pytest

import tinymq
from tests.client.fake_cluster import FakeCluster
from tests.client.running import client_of, run
from tinymq.base.errors import BrokerUnreachable, InvalidConfig, NotReady, UnknownTopic
from tinymq.client.cluster.call_errors import give_up, is_unformed
from tinymq.client.common import config
from tinymq.client.common.options import ProducerOptions, ReaderOptions
from tinymq.client.net import grpc_transport
from tinymq.proto import tinymq_pb2 as pb

CALL_S = 30.0
PATIENCE_MS = 200


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    made.add_topic("orders")
    return made


def gone(cluster: FakeCluster) -> None:
    for broker in cluster.nodes:
        cluster.kill(broker, elect=False)


def test_refused_by_every_address_it_gives_up_before_the_deadline_of_the_call(cluster: FakeCluster) -> None:
    async def scenario() -> None:
        gone(cluster)
        async with client_of(cluster, request_timeout_ms=CALL_S * 1000, connect_timeout_ms=PATIENCE_MS) as mq:
            async with asyncio.timeout(CALL_S / 2):
                with pytest.raises(BrokerUnreachable) as raised:
                    await mq.send("orders", b"")
            assert all(f"fake:{n}" in raised.value.message for n in (1, 2, 3)), "every address and its reason"

    run(scenario())


def test_once_served_it_waits_for_its_brokers_up_to_the_deadline(cluster: FakeCluster) -> None:
    async def scenario() -> None:
        async with client_of(cluster, request_timeout_ms=CALL_S * 1000, connect_timeout_ms=0) as mq:
            await mq.admin.list_topics()
            gone(cluster)
            waiting = asyncio.ensure_future(mq.admin.list_topics())
            await asyncio.wait([waiting], timeout=0.3)
            assert not waiting.done(), "three brokers that restart are no wrong address"
            for broker in cluster.nodes:
                cluster.start(broker)
            assert [topic.name for topic in await waiting] == ["orders"]

    run(scenario())


def test_the_hint_names_a_topic_with_a_similar_name(cluster: FakeCluster) -> None:
    async def scenario() -> None:
        async with client_of(cluster) as mq:
            with pytest.raises(UnknownTopic, match=r"no topic 'odrers'.*did you mean 'orders'\?"):
                await mq.send("odrers", b"")
            with pytest.raises(UnknownTopic, match=r"no topic 'zebra' \(create it"):
                await mq.send("zebra", b"")

    run(scenario())


def test_the_environment_names_the_brokers_if_the_program_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYMQ_SERVERS", "a:1, b:2")
    assert tinymq.Client().servers == tinymq.AsyncClient().servers == ("a:1", "b:2")
    assert tinymq.Client("c:3").servers == ("c:3",)
    monkeypatch.delenv("TINYMQ_SERVERS")
    with pytest.raises(InvalidConfig, match="TINYMQ_SERVERS"):
        tinymq.Client()


def test_objects_show_what_they_are(cluster: FakeCluster) -> None:
    async def scenario() -> None:
        client = client_of(cluster)
        async with client as mq:
            assert repr(mq).startswith("<AsyncClient of fake:1")
            reader, producer = mq.reader("orders"), mq.producer(acks="leader")
            assert repr(reader) == "<AsyncReader of 'orders'>"
            assert repr(producer) == "<AsyncProducer with acks='leader'>"
            assert repr(mq.queue("orders", 0, "c")) == "<AsyncQueue of orders/0, channel 'c'>"
        assert repr(mq).endswith(" (closed)>")

    run(scenario())
    with tinymq.Client("a:1") as sync:
        assert repr(sync) == "<Client of a:1>"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("UNAVAILABLE: Trying to connect an http1.x server", "metrics_listen"),
        ("UNAVAILABLE: ipv4:127.0.0.1:7170: Socket closed", "peer_listen and stream_listen"),
        ("Connection refused", ""),
    ],
)
def test_a_port_that_is_not_for_clients_is_named(reason: str, words: str) -> None:
    said = grpc_transport._other_port(reason)
    assert words in said
    assert bool(said) == bool(words)


def test_choices_are_literals_so_that_type_checkers_see_typos() -> None:
    def choices(options: Any, name: str) -> tuple[Any, ...]:
        return get_args(vars(config)[options.__annotations__[name].__forward_arg__])

    assert choices(ProducerOptions, "acks") == config.ACKS
    assert choices(ReaderOptions, "replica") == config.REPLICAS
    assert choices(ReaderOptions, "on_trimmed") == config.ON_TRIMMED
    assert choices(ProducerOptions, "compression") == tuple(config.COMPRESSION)


def test_an_unformed_cluster_is_called_so() -> None:
    assert is_unformed(NotReady("this broker belongs to no cluster yet", state="unformed"))
    assert not is_unformed(NotReady("this broker is starting", state="starting"))


def test_of_an_unformed_cluster_it_is_said_which_broker_does_not_even_run() -> None:
    unformed = NotReady("this broker belongs to no cluster yet", hint="form one", state="unformed")
    reasons = {"a:1": unformed.message, "b:2": "Connection refused"}
    raised = give_up(pb.ClusterStatusRequest(), 1.0, reasons, unformed, None)
    assert (type(raised), raised.hint) == (NotReady, "form one")
    assert raised.message == f"the cluster is not formed yet: a:1: {unformed.message}; b:2: Connection refused"
