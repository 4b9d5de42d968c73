"""Group commit of commands: those that come in one turn of the loop, and all that come while an entry with commands is
on its way, travel in one next entry. What a call asks for is in one entry, and answered as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinymq.base.errors import DeadlineExceeded, InvalidRequest, OutcomeUnknown, QuotaExceeded, TinymqError
from tinymq.base.types import Position
from tinymq.broker.partition.deadlines import Deadlines, Ticket
from tinymq.broker.partition.pending_acks import tell
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.format.entry import Entry
from tinymq.proto import partition_pb2 as pb

ENTRY_COMMANDS_MAX = 1000
ENTRY_BYTES_MAX = 256 * 1024
QUEUED_COMMANDS_MAX = 16_384  # of one partition, not yet in an entry
QUEUED_BYTES_MAX = 4 * 1024 * 1024
RETRY_MS = 50

Done = Callable[[list[CommandOutcome] | TinymqError], None]
"""Told once what became of a call's commands, one outcome each, on the loop. Must not raise."""


def check_call(commands: Sequence[pb.Command]) -> int:
    """Bytes of a call's commands in an entry. Raises InvalidRequest for more than one holds."""
    size = sum([command.ByteSize() for command in commands]) + 6 * len(commands)
    if not 0 < len(commands) <= ENTRY_COMMANDS_MAX or size > ENTRY_BYTES_MAX:
        raise InvalidRequest(
            f"{len(commands)} commands of {size} bytes in one call",
            hint=f"1 to {ENTRY_COMMANDS_MAX} commands, of at most {ENTRY_BYTES_MAX} bytes",
        )
    return size


class _Call:
    """Commands that are not answered yet."""

    __slots__ = ("commands", "done", "proposed", "queue", "size", "ticket")

    def __init__(self, queue: CommandQueue, commands: Sequence[pb.Command], size: int, done: Done) -> None:
        self.queue = queue
        self.commands = commands
        self.size = size
        self.done: Done | None = done
        self.proposed = False
        self.ticket: Ticket | None = None

    def answer(self, outcome: list[CommandOutcome] | TinymqError) -> None:
        """Once."""
        done, self.done = self.done, None
        if done is not None:
            tell(self.queue.name, done, outcome)

    def expire(self) -> None:
        self.queue.expired(self)


class CommandQueue:
    """The commands of one partition that this leader has not answered. Never raises from `applied` on."""

    def __init__(
        self,
        name: str,
        deadlines: Deadlines,
        soon: Callable[[Callable[[], None]], object],
        propose: Callable[[list[pb.Command]], Position],
    ) -> None:
        """`propose` appends an entry with these commands, and raises where that is refused."""
        self.name = name
        self._deadlines = deadlines
        self._soon = soon
        self._propose = propose
        self._queued: dict[_Call, None] = {}  # in order
        self._queued_commands = 0
        self._queued_bytes = 0
        self._out: list[_Call] = []  # in the entry on its way
        self._position: Position | None = None  # of that entry
        self._flushing = False

    @property
    def idle(self) -> bool:
        """Nothing is queued, and nothing on its way."""
        return not self._queued and self._position is None

    def add(self, commands: Sequence[pb.Command], timeout_s: float, done: Done) -> None:
        """Raises, and then `done` is not called: InvalidRequest for more than an entry holds, QuotaExceeded."""
        size = check_call(commands)
        full = self._queued_commands + len(commands) > QUEUED_COMMANDS_MAX
        if full or self._queued_bytes + size > QUEUED_BYTES_MAX:
            raise QuotaExceeded(f"{self.name}: too many commands are waiting", retry_after_ms=RETRY_MS)
        call = _Call(self, commands, size, done)
        call.ticket = self._deadlines.add(call, timeout_s)
        self._queued[call] = None
        self._count(call, 1)
        if self._position is None:
            self._flush_soon()

    def applied(self, entry: Entry, outcomes: Sequence[CommandOutcome]) -> None:
        """An entry with commands is: answer, if it is the one on its way, and send the next."""
        position = self._position
        if position is None or entry.index < position.index:
            return
        calls, self._out, self._position = self._out, [], None
        known = entry.index == position.index and entry.term == position.term
        at = 0
        for call in calls:
            upto = at + len(call.commands)
            if known and upto <= len(outcomes):
                self._end(call, list(outcomes[at:upto]))
            else:
                self._end(call, OutcomeUnknown(f"{self.name}: another leader's entry took the place"))
            at = upto
        if self._queued:
            self._flush_soon()

    def lost(self, error: TinymqError) -> None:
        """The leadership is: what is on its way may be committed or not; what is not was not done."""
        calls, self._out, self._position = self._out, [], None
        queued, self._queued = self._queued, {}
        self._queued_commands = self._queued_bytes = 0
        for call in calls:
            self._end(call, OutcomeUnknown(f"{self.name}: the leader changed before the command was committed"))
        for call in queued:
            self._end(call, error)

    def expired(self, call: _Call) -> None:
        """Its time is up."""
        if call.proposed:
            call.answer(OutcomeUnknown(f"{self.name}: not committed in time; it may yet be"))
        else:
            del self._queued[call]
            self._count(call, -1)
            call.answer(DeadlineExceeded(f"{self.name}: the commands before this one took too long"))

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._soon(self._flush)

    def _flush(self) -> None:
        """Propose what fits into one entry."""
        self._flushing = False
        if self._position is not None or not self._queued:
            return
        calls: list[_Call] = []
        count = size = 0
        for call in self._queued:
            count, size = count + len(call.commands), size + call.size
            if count > ENTRY_COMMANDS_MAX or size > ENTRY_BYTES_MAX:
                break
            calls.append(call)
        commands = [command for call in calls for command in call.commands]
        for call in calls:
            del self._queued[call]
            self._count(call, -1)
            call.proposed = True
        try:
            position = self._propose(commands)
        except TinymqError as error:
            for call in calls:
                self._end(call, error)
            if self._queued:
                self._flush_soon()
            return
        self._position, self._out = position, calls

    def _count(self, call: _Call, sign: int) -> None:
        self._queued_commands += sign * len(call.commands)
        self._queued_bytes += sign * call.size

    def _end(self, call: _Call, outcome: list[CommandOutcome] | TinymqError) -> None:
        if call.ticket is not None:
            self._deadlines.drop(call.ticket)
        call.answer(outcome)
