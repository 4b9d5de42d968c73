"""Skips the log for commands that would change nothing, such as a commit at the cursor's present position.

If no other replica could know better, such commands are answered at once. Otherwise they are answered after a majority
has confirmed that this replica still leads. All other commands go into the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tinymq.base.errors import TinymqError
from tinymq.broker.partition.commands import CommandQueue, Done, check_call
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.pending_acks import call_done
from tinymq.broker.state.cursors import CursorVerdict
from tinymq.proto import partition_pb2 as pb


class NoopElision:
    """Takes the calls of one partition while its replica leads."""

    def __init__(
        self,
        queue: CommandQueue,
        deadlines: Deadlines,
        *,
        judge: Callable[[pb.Command], CursorVerdict | None],
        read_index: Callable[[float], Awaitable[int]],
        check_leading: Callable[[], None],
        check_room: Callable[[Sequence[pb.Command]], None],
    ) -> None:
        """`judge` returns the outcome that a cursor's command would have in the applied state, and None for other
        commands. `read_index` returns once a majority has confirmed the leadership. `check_room` raises QuotaExceeded
        for commands that would be written."""
        self._queue = queue
        self._deadlines = deadlines
        self._judge = judge
        self._read_index = read_index
        self._check_leading = check_leading
        self._check_room = check_room
        self._confirming: set[asyncio.Task[None]] = set()  # the loop refers to its tasks weakly

    def take(self, commands: Sequence[pb.Command], timeout_s: float, done: Done) -> None:
        """Answer or queue one call, as `Partition.command` describes."""
        check_call(commands)
        verdicts = self._unchanging(commands)
        if verdicts is not None and all(v.settled for v in verdicts):
            done([v.outcome for v in verdicts])
        elif verdicts is not None and self._queue.idle:  # commands in the queue could change the outcome
            task = asyncio.get_running_loop().create_task(self._confirm(commands, timeout_s, done))
            self._confirming.add(task)
            task.add_done_callback(self._confirming.discard)
        else:
            self._check_room(commands)
            self._queue.add(commands, timeout_s, done)

    def _unchanging(self, commands: Sequence[pb.Command]) -> list[CursorVerdict] | None:
        """The verdicts on the commands, or None if one of them would change something."""
        verdicts = []
        for command in commands:
            verdict = self._judge(command)
            if verdict is None or verdict.changes:
                return None
            verdicts.append(verdict)
        return verdicts

    async def _confirm(self, commands: Sequence[pb.Command], timeout_s: float, done: Done) -> None:
        deadline_s = self._deadlines.now() + timeout_s
        try:
            await self._read_index(timeout_s)
            self._check_leading()
            verdicts = self._unchanging(commands)
            if verdicts is None:  # the state has changed meanwhile, and the commands have an effect
                self._check_room(commands)
                self._queue.add(commands, deadline_s - self._deadlines.now(), done)
            else:
                call_done(self._queue.name, done, [v.outcome for v in verdicts])
        except TinymqError as error:
            call_done(self._queue.name, done, error)
