"""`tinymq broker` as it ships, which dies at a step of a commit when a strike says so: FOLDER, and its arguments.

python -m tests.spark.struck_broker FOLDER --config broker-1.toml
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.spark.strikes import COORDINATOR, COUNTED, DECIDED, LEADER, PUBLISHED, StrikeFolder
from tinymq.base.types import PartitionId
from tinymq.broker.coordinator.held_counts import HeldCounts
from tinymq.broker.coordinator.peer_transaction_calls import LedPartition, PeerTransactionCalls
from tinymq.broker.state.staged import TransactionId
from tinymq.cli.main import run
from tinymq.proto import transaction_pb2 as pb

Answer = Callable[[LedPartition], Awaitable[pb.PartitionAnswer]]


def strike_at(folder: StrikeFolder) -> None:
    """Let this process reach the steps, as a coordinator and as a leader of partitions."""
    ask, end, answer_held, answer_end = (
        HeldCounts.ask,
        PeerTransactionCalls.end,
        PeerTransactionCalls._held,
        PeerTransactionCalls._end,
    )

    async def counted(self: HeldCounts, *words: Any, **more: Any) -> Mapping[PartitionId, int]:
        held = await ask(self, *words, **more)
        folder.reach(COUNTED, COORDINATOR)
        return held

    async def told(
        self: PeerTransactionCalls, transaction: TransactionId, places: Collection[PartitionId], *, publish: bool,
        sets: Collection[int] | None = None,
    ) -> Collection[PartitionId]:  # fmt: skip
        if publish:
            folder.reach(DECIDED, COORDINATOR)
        ended = await end(self, transaction, places, publish=publish, sets=sets)
        if publish and ended:
            folder.reach(PUBLISHED, COORDINATOR)
        return ended

    def says_what_it_holds(self: PeerTransactionCalls, transaction: TransactionId, writers: Sequence[int]) -> Answer:
        answer = answer_held(self, transaction, writers)

        async def held(partition: LedPartition) -> pb.PartitionAnswer:
            found = await answer(partition)
            folder.reach(COUNTED, LEADER)
            return found

        return held

    def carries_out(self: PeerTransactionCalls, request: pb.EndRequest) -> Answer:
        answer = answer_end(self, request)

        async def ended(partition: LedPartition) -> pb.PartitionAnswer:
            if request.publish:
                folder.reach(DECIDED, LEADER)
            found = await answer(partition)
            if request.publish:
                folder.reach(PUBLISHED, LEADER)
            return found

        return ended

    for owner, name, new in (
        (HeldCounts, "ask", counted),
        (PeerTransactionCalls, "end", told),
        (PeerTransactionCalls, "_held", says_what_it_holds),
        (PeerTransactionCalls, "_end", carries_out),
    ):
        setattr(owner, name, new)


if __name__ == "__main__":
    strike_at(StrikeFolder(Path(sys.argv[1])))
    sys.exit(run(["broker", *sys.argv[2:]]))
