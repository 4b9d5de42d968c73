"""An empty partition takes no record before its groups have cursors there."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.broker.values import Applied
from tinymq.base.errors import NotReady
from tinymq.broker.partition.group_gate import GroupGate
from tinymq.proto import partition_pb2 as pb


class Expected(NamedTuple):
    name: str = "g"
    group_id: int = 7
    cursor_kind: int = 2
    start_us: int = -2


def test_an_empty_partition_waits_for_the_cursors_of_its_groups() -> None:
    at = Applied()
    gate = GroupGate("t/0", at.state)
    gate.check()  # no group reads the topic
    asked: list[None] = []
    gate.expected = lambda: [Expected()]
    gate.on_missing = lambda: asked.append(None)
    with pytest.raises(NotReady):
        gate.check()
    assert asked
    at.run(pb.Command(make=pb.MakeCursor(name="g", kind=pb.QUEUE, group_id=7)))
    gate.check()
