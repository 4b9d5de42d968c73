"""Which broker a call is forwarded to, how often, and its result: one broker that leads nothing, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tinymq.base.config import Limits
from tinymq.base.errors import (
    BrokerUnreachable,
    Closed,
    DeadlineExceeded,
    NotLeader,
    OutcomeUnknown,
    QuotaExceeded,
    TinymqError,
    UnknownTopic,
)
from tinymq.base.topic_config import TopicConfig
from tinymq.base.types import PeerAddress, TopicId
from tinymq.client.net.ports import Metadata
from tinymq.gateway.call import Call
from tinymq.gateway.leader_calls import LeaderCalls
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import to_wire
from tinymq.proto.methods import Method
from tinymq.registry.state.values import BrokerRecord, QueueRecord, TopicRecord
from tinymq.rpc.common.broker_state import BrokerState, Serving
from tinymq.rpc.common.forward_mark import ForwardMarks
from tinymq_chaos.sim.virtual.event_loop import VirtualClock, VirtualLoop, run_virtually

ID = TopicId(b"t" * 16)
TOPIC = TopicRecord(
    name="t", topic_id=ID, replication_factor=1, created_us=0, queues=(QueueRecord("t", ID, 0, (), 0),),
    config=TopicConfig(), next_partition=1, config_version=0,
)  # fmt: skip
REPLY = pb.FetchMessageReply(high_watermark=7)


class Elsewhere:
    """A broker that knows that broker 2 leads, and its links to brokers. A link returns `answers` in turn, and repeats
    the last one.
    """

    def __init__(self, loop: VirtualLoop, answers: Sequence[object]) -> None:
        self.clock = VirtualClock(loop)
        self.env = self
        self.replica_host = self
        self.broker_id = 1
        self.cluster_id = b"c" * 16
        self.registry = self
        self.limits = Limits()
        self.asked: list[tuple[str, float]] = []  # the address of each forwarded call, and its seconds
        self.serving = Serving()
        self.serving.state = BrokerState.RUNNING
        self._answers = list(answers)
        self._gone = False  # a broker reported that the topic is deleted

    def check_metadata_known(self) -> None:
        pass

    async def topics(self, names: list[str]) -> list[TopicRecord]:
        return [TOPIC]

    def get(self, topic_id: bytes, partition: int) -> None:
        return None

    def leader_of(self, group: object) -> tuple[int, int]:
        return 2, 1

    def address_of(self, broker_id: int) -> str:
        return f"h:{broker_id}"

    def get_broker(self, broker_id: int) -> None:
        return None

    def get_all_brokers(self) -> list[BrokerRecord]:
        return [BrokerRecord(n, b"i" * 16, n, f"h:{n}", f"p:{n}", "") for n in (1, 2)]

    async def metadata(self, request: pb.MetadataRequest) -> pb.MetadataReply:
        brokers = [pb.BrokerInfo(id=n, address=f"h:{n}", alive=True) for n in (1, 2)]
        led = pb.PartitionInfo(partition=0, leader=2, leader_epoch=1, replicas=[2])
        topic = pb.TopicInfo(name="t", topic_id=ID, partitions=[led])
        if self._gone:
            topic = pb.TopicInfo(name="t", error=to_wire(UnknownTopic("gone")))
        return pb.MetadataReply(broker_id=1, brokers=brokers, topics=[topic] if request.topics else [])

    def link(self, address: str) -> ScriptedLink:
        return ScriptedLink(self, address)

    def answer(self) -> object:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, TinymqError):
            self._gone = isinstance(answer, UnknownTopic)
            raise answer
        return answer

    def calls(self, elsewhere: Sequence[PeerAddress] = ()) -> LeaderCalls:
        own: Any = self
        return LeaderCalls(
            self.serving, own, ForwardMarks(b"s" * 16),
            metadata=self.metadata, rng=random.Random(1), elsewhere=elsewhere,
        )  # fmt: skip


class ScriptedLink:
    """A link to another broker."""

    def __init__(self, broker: Elsewhere, address: str) -> None:
        self._broker = broker
        self.address = address

    async def call(
        self, request: Any, timeout_s: float, *, method: Method | None = None, metadata: Metadata = ()
    ) -> object:
        if method is None:
            return await self._broker.metadata(request)
        self._broker.asked.append((self.address, timeout_s))
        return self._broker.answer()

    async def close(self) -> None:
        pass


def outcome(answers: Sequence[object], deadline_s: float = 5.0, **how: Any) -> tuple[object, Elsewhere, float]:
    """(the reply or the code of the error, the broker, the seconds that it took)."""

    async def main(loop: VirtualLoop) -> tuple[object, Elsewhere, float]:
        broker: Any = Elsewhere(loop, answers)
        began_s = broker.clock.monotonic()
        call = Call(broker, "me", how.pop("forwarded", False), began_s + deadline_s)
        leaders = broker.calls()
        broker.serving.state = how.pop("state", BrokerState.RUNNING)
        options = {"repeatable": True} | how
        came: object
        try:
            came = await leaders.at_leader(call, "FetchMessage", pb.FetchMessageRequest(topic="t"), _never, **options)
        except TinymqError as error:
            came = error.code
        took_s = broker.clock.monotonic() - began_s
        await leaders.close()
        return came, broker, took_s

    return run_virtually(main)


async def _never(partition: object) -> object:
    raise AssertionError("it leads nothing")


def test_the_client_retries_until_a_broker_answers() -> None:
    came, broker, took_s = outcome([NotLeader("no"), BrokerUnreachable("no"), OutcomeUnknown("?"), REPLY])
    assert came is REPLY
    assert (len(broker.asked), took_s < 0.2) == (4, True)


@pytest.mark.parametrize(
    ("answers", "how", "code", "asked"),
    [
        ([NotLeader("no")], {}, "DeadlineExceeded", None),
        ([OutcomeUnknown("?"), NotLeader("no")], {}, "OutcomeUnknown", None),
        ([OutcomeUnknown("?"), QuotaExceeded("no")], {}, "OutcomeUnknown", 2),
        ([OutcomeUnknown("?"), DeadlineExceeded("no")], {}, "OutcomeUnknown", None),
        ([OutcomeUnknown("?"), Closed("stops")], {}, "OutcomeUnknown", 2),
        ([OutcomeUnknown("?"), UnknownTopic("gone")], {}, "UnknownTopic", 2),
        ([QuotaExceeded("no")], {}, "QuotaExceeded", 1),
        ([Closed("stops")], {}, "Closed", 1),
        ([OutcomeUnknown("?")], {"repeatable": False}, "OutcomeUnknown", 1),
        ([NotLeader("no"), OutcomeUnknown("?")], {"repeatable": False}, "OutcomeUnknown", 2),
        ([NotLeader("no")], {"patient": False}, "NotLeader", 1),
        ([OutcomeUnknown("?"), NotLeader("no")], {"patient": False}, "OutcomeUnknown", None),
        ([REPLY], {"forwarded": True}, "NotLeader", 0),
        ([NotLeader("no")], {"state": BrokerState.STOPPING}, "NotLeader", 0),
    ],
)
def test_what_it_comes_to(answers: list[object], how: dict[str, Any], code: str, asked: int | None) -> None:
    """The unanswered attempt may have taken a message, so a later refusal must not deny that."""
    came, broker, took_s = outcome(answers, **how)
    assert came == code
    assert took_s <= 5.0
    assert len(broker.asked) == asked if asked is not None else 10 < len(broker.asked) < 40


def test_a_silent_leader_is_left_for_another_unless_that_could_write_twice() -> None:
    for repeatable, waits_s, expected in ((True, 0.0, 3.0), (True, 10.0, 13.0), (False, 0.0, 60.0)):
        _, broker, _ = outcome([REPLY], 60.0, repeatable=repeatable, waits_s=waits_s)
        assert broker.asked == [("h:2", pytest.approx(expected))]
