"""Who asks whom, how often, and what it comes to: one broker that leads nothing, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

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
from tinymq.base.types import TopicId
from tinymq.gateway.forward_mark import ForwardMarks
from tinymq.gateway.leader_calls import Call, Leading
from tinymq.proto import tinymq_pb2 as pb
from tinymq.registry.state.values import QueueRecord, TopicRecord
from tinymq.rpc.common.broker_state import Serving, State
from tinymq.rpc.common.forwarding import Metadata
from tinymq_chaos.sim.virtual.event_loop import VirtualClock, VirtualLoop, run_virtually

ID = TopicId(b"t" * 16)
TOPIC = TopicRecord("t", ID, 1, 0, (QueueRecord("t", ID, 0, (), 0),), TopicConfig(), 1, 0)
REPLY = pb.FetchMessageReply(high_watermark=7)


class Elsewhere:
    """A broker that knows that broker 2 leads, and the way there, which answers as told: the last answer for good."""

    def __init__(self, loop: VirtualLoop, answers: Sequence[object]) -> None:
        self.clock = VirtualClock(loop)
        self.env = self
        self.replica_host = self
        self.broker_id = 1
        self.cluster_id = b"c" * 16
        self.registry = self
        self.asked: list[float] = []  # with how many seconds
        self.serving = Serving()
        self.serving.state = State.RUNNING
        self._answers = list(answers)

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

    async def ask(self, address: str, method: str, request: Any, timeout_s: float, metadata: Metadata = ()) -> Any:
        self.asked.append(timeout_s)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, TinymqError):
            raise answer
        return answer

    async def close(self) -> None:
        pass


def outcome(answers: Sequence[object], deadline_s: float = 5.0, **how: Any) -> tuple[object, Elsewhere, float]:
    """(what it came to, the broker, how long it took)."""

    async def main(loop: VirtualLoop) -> tuple[object, Elsewhere, float]:
        broker: Any = Elsewhere(loop, answers)
        began_s = broker.clock.monotonic()
        call = Call(broker, "me", how.pop("forwarded", False), began_s + deadline_s)
        leading = Leading(broker.serving, broker, ForwardMarks(b"s" * 16))
        broker.serving.state = how.pop("state", State.RUNNING)
        options = {"repeatable": True} | how
        came: object
        try:
            came = await leading.at_leader(call, "FetchMessage", pb.FetchMessageRequest(topic="t"), _never, **options)
        except TinymqError as error:
            came = error.code
        return came, broker, broker.clock.monotonic() - began_s

    return run_virtually(main)


async def _never(partition: object) -> object:
    raise AssertionError("it leads nothing")


def test_it_looks_again_until_somebody_answers() -> None:
    came, broker, took_s = outcome([NotLeader("no"), BrokerUnreachable("no"), OutcomeUnknown("?"), REPLY])
    assert came is REPLY
    assert (len(broker.asked), took_s < 0.2) == (4, True)


@pytest.mark.parametrize(
    ("answers", "how", "code", "asked"),
    [
        ([NotLeader("no")], {}, "DeadlineExceeded", None),
        ([OutcomeUnknown("?"), NotLeader("no")], {}, "OutcomeUnknown", None),
        ([OutcomeUnknown("?"), QuotaExceeded("no")], {}, "OutcomeUnknown", None),
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
        ([NotLeader("no")], {"state": State.STOPPING}, "NotLeader", 1),
    ],
)
def test_what_it_comes_to(answers: list[object], how: dict[str, Any], code: str, asked: int | None) -> None:
    """A message may have been taken by the attempt that nobody answered: no later refusal may deny that."""
    came, broker, took_s = outcome(answers, **how)
    assert came == code
    assert took_s <= 5.0
    assert len(broker.asked) == asked if asked is not None else 10 < len(broker.asked) < 40


def test_a_silent_leader_is_left_for_another_unless_that_could_write_twice() -> None:
    for repeatable, waits_s, expected in ((True, 0.0, 3.0), (True, 10.0, 13.0), (False, 0.0, 60.0)):
        _, broker, _ = outcome([REPLY], 60.0, repeatable=repeatable, waits_s=waits_s)
        assert broker.asked == [pytest.approx(expected)]
