"""Waits for a message in any queue of a topic, on a broker that may lead none of them.

The broker watches its own replicas. A replica may be a little behind: its news are a reason to ask the leader, and
never an answer.
"""

from __future__ import annotations

from collections.abc import Container
from contextlib import ExitStack

from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.broker import Broker
from tinymq.broker.serve.messages import Turn, WaitingTakers, changed
from tinymq.registry.state.values import TopicRecord

LOOK_S = 0.25  # between two looks at queues that cannot be watched here


class Watch:
    """One call's wait for a channel's next message."""

    def __init__(
        self, takers: WaitingTakers, broker: Broker, topic: TopicRecord, channel: str, missed: Container[int]
    ) -> None:
        """`missed`: the queues that could not be asked. They are asked again in any case."""
        self._broker = broker
        self._replicas: dict[int, Partition] = {}
        for queue in topic.queues:
            partition = broker.replica_host.get(queue.topic_id, queue.partition)
            if partition is not None and partition.closed is None and partition.group.failure is None:
                self._replicas[queue.partition] = partition
        self._turns: dict[int, Turn] = {
            number: takers.turn(each, channel) for number, each in self._replicas.items() if number not in missed
        }
        self._others = [queue.partition for queue in topic.queues if queue.partition not in self._turns]
        self._stack = ExitStack()

    def __enter__(self) -> Watch:
        for turn in self._turns.values():
            self._stack.enter_context(turn)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def changed(self, wait_s: float) -> None:
        """Return once there may be something, or after `wait_s` seconds at the latest."""
        wait_s = min(wait_s, LOOK_S) if self._others else wait_s
        await changed(self._broker.deadlines, list(self._replicas.values()), wait_s, self._comes)

    def _comes(self) -> bool:
        """One message is enough. The claim on it keeps other waiting calls from asking for the same message."""
        if any(each.closed is not None for each in self._replicas.values()):
            return True
        return any(turn.claim() for turn in self._turns.values())

    def wanted(self) -> list[int]:
        """The queues to ask now."""
        return [number for number, turn in self._turns.items() if turn.held] + self._others
