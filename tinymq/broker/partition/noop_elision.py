"""Commands that would change nothing are not written: they are answered at once where no other replica could know
better, else when a majority has said that nobody else leads. All others go into the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tinymq.base.errors import TinymqError
from tinymq.broker.partition.commands import CommandQueue, Done, check_call
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.pending_acks import tell
from tinymq.broker.state.channels import ConsumerVerdict
from tinymq.proto import partition_pb2 as pb


class NoopElision:
    """Takes the calls of one partition, while it leads."""

    def __init__(
        self,
        queue: CommandQueue,
        deadlines: Deadlines,
        judge: Callable[[pb.Command], ConsumerVerdict | None],
        read_index: Callable[[float], Awaitable[int]],
        check_leading: Callable[[], None],
        check_room: Callable[[Sequence[pb.Command]], None],
    ) -> None:
        """`judge`: what a channel's command would come to by what is applied; None for other commands. `check_room`
        raises QuotaExceeded for commands that would be written."""
        self._queue = queue
        self._deadlines = deadlines
        self._judge = judge
        self._read_index = read_index
        self._check_leading = check_leading
        self._check_room = check_room
        self._confirming: set[asyncio.Task[None]] = set()  # held, for the loop holds tasks weakly

    def take(self, commands: Sequence[pb.Command], timeout_s: float, done: Done) -> None:
        """As `Partition.command`."""
        check_call(commands)
        verdicts = self._unchanging(commands)
        if verdicts is not None and all(v.settled for v in verdicts):
            done([v.outcome for v in verdicts])
        elif verdicts is not None and self._queue.idle:
            task = asyncio.get_running_loop().create_task(self._confirm(commands, timeout_s, done))
            self._confirming.add(task)
            task.add_done_callback(self._confirming.discard)
        else:
            self._check_room(commands)
            self._queue.add(commands, timeout_s, done)

    def _unchanging(self, commands: Sequence[pb.Command]) -> list[ConsumerVerdict] | None:
        """What they come to, if none of them changes anything; else None."""
        verdicts = []
        for command in commands:
            verdict = self._judge(command)
            if verdict is None or verdict.changes:
                return None
            verdicts.append(verdict)
        return verdicts

    async def _confirm(self, commands: Sequence[pb.Command], timeout_s: float, done: Done) -> None:
        until = self._deadlines.now() + timeout_s
        try:
            await self._read_index(timeout_s)
            self._check_leading()
            verdicts = self._unchanging(commands)
            if verdicts is None:  # meanwhile there is something to do
                self._check_room(commands)
                self._queue.add(commands, until - self._deadlines.now(), done)
            else:
                tell(self._queue.name, done, [v.outcome for v in verdicts])
        except TinymqError as error:
            tell(self._queue.name, done, error)
