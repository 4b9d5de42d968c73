"""Group commit of commands: many calls share one entry.

At most one entry with commands is uncommitted at a time. Commands that arrive meanwhile, or in the same turn of the
loop, wait for the next entry. All commands of a call are in one entry, and the call is answered as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinymq.base.errors import DeadlineExceeded, InvalidRequest, OutcomeUnknown, QuotaExceeded, TinymqError
from tinymq.base.types import Position
from tinymq.broker.partition.deadlines import Deadlines, Ticket
from tinymq.broker.partition.pending_acks import call_done
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.format.entry import Entry, Kind
from tinymq.format.feature_level import FIRST_LEVEL, PARTITION_COMMANDS, check, entry_version
from tinymq.proto import partition_pb2 as pb

ENTRY_COMMANDS_MAX = 1000
ENTRY_BYTES_MAX = 256 * 1024
QUEUED_COMMANDS_MAX = 16_384  # of one partition, and not proposed yet
QUEUED_BYTES_MAX = 4 * 1024 * 1024
RETRY_MS = 50
GROUPS_LEVEL = 2  # the feature level of groups' cursors

Done = Callable[[list[CommandOutcome] | TinymqError], None]
"""Called once, on the loop, with the outcomes of a call's commands in their order, or with an error. Must not raise."""


def check_call(commands: Sequence[pb.Command]) -> int:
    """The bytes of a call's commands in an entry. Raises InvalidRequest for more than one entry holds."""
    size = sum([command.ByteSize() for command in commands]) + 6 * len(commands)
    if not 0 < len(commands) <= ENTRY_COMMANDS_MAX or size > ENTRY_BYTES_MAX:
        raise InvalidRequest(
            f"{len(commands)} commands of {size} bytes in one call",
            hint=f"1 to {ENTRY_COMMANDS_MAX} commands, of at most {ENTRY_BYTES_MAX} bytes",
        )
    return size


def level_of(command: pb.Command, level: int) -> int:
    """The feature level that a command needs in a cluster of `level`.

    Opening a channel needs no level. From level 2 on it is still proposed as content of level 2, because such an entry
    permits more cursors.
    """
    name = command.WhichOneof("command") or ""
    needed = PARTITION_COMMANDS.get(name, FIRST_LEVEL)
    if name == "open":
        needed = max(needed, min(level, GROUPS_LEVEL))
    if name in ("open", "commit", "seek") and getattr(command, name).kind != pb.CHANNEL:
        needed = max(needed, GROUPS_LEVEL)
    return needed


def command_version(commands: Sequence[pb.Command], level: int) -> int:
    """The version of an entry with these commands. Raises UnsupportedVersion if the cluster's level is too low."""
    needed = max([level_of(command, level) for command in commands], default=FIRST_LEVEL)
    check("the command", needed, level)
    return entry_version(Kind.COMMAND, needed)


class _Call:
    """One call's commands, until they are answered."""

    __slots__ = ("commands", "done", "proposed", "queue", "size", "ticket")

    def __init__(self, queue: CommandQueue, commands: Sequence[pb.Command], size: int, done: Done) -> None:
        self.queue = queue
        self.commands = commands
        self.size = size
        self.done: Done | None = done  # None once it was called
        self.proposed = False  # from then on the outcome of an error is unknown
        self.ticket: Ticket | None = None

    def answer(self, outcome: list[CommandOutcome] | TinymqError) -> None:
        """Call `done`, the first time only."""
        done, self.done = self.done, None
        if done is not None:
            call_done(self.queue.name, done, outcome)

    def expire(self) -> None:
        self.queue.expired(self)


class CommandQueue:
    """The commands of one partition that its leader has not answered yet."""

    def __init__(
        self,
        name: str,
        deadlines: Deadlines,
        soon: Callable[[Callable[[], None]], object],
        propose: Callable[[list[pb.Command]], Position],
    ) -> None:
        """`soon` runs a callback on the loop after the current one. `propose` appends an entry with these commands, or
        raises a TinymqError."""
        self.name = name
        self._deadlines = deadlines
        self._soon = soon
        self._propose = propose
        self._queued: dict[_Call, None] = {}  # not proposed yet, oldest first
        self._queued_commands = 0  # invariant: the number of commands in `_queued`
        self._queued_bytes = 0  # invariant: the bytes of the commands in `_queued`
        self._proposed: list[_Call] = []  # in the uncommitted entry, in the order of its commands
        self._position: Position | None = None  # of that entry; None: there is none
        self._flushing = False  # a flush is scheduled

    @property
    def idle(self) -> bool:
        """Whether nothing is queued and nothing is uncommitted."""
        return not self._queued and self._position is None

    def add(self, commands: Sequence[pb.Command], timeout_s: float, done: Done) -> None:
        """Queue a call. `done` is called within `timeout_s` or a little later.

        Raises, without a call of `done`: InvalidRequest for more than one entry holds, QuotaExceeded.
        """
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
        """Answer the calls of an entry that is applied, and propose the next one. Never raises."""
        position = self._position
        if position is None or entry.index < position.index:
            return
        calls, self._proposed, self._position = self._proposed, [], None
        # A later entry, or another term, means that a new leader replaced the entry that these calls wait for.
        ours = entry.index == position.index and entry.term == position.term
        first = 0
        for call in calls:
            end = first + len(call.commands)
            if ours and end <= len(outcomes):
                self._end(call, list(outcomes[first:end]))
            else:
                self._end(call, OutcomeUnknown(f"{self.name}: another leader's entry took the place"))
            first = end
        if self._queued:
            self._flush_soon()

    def lost(self, error: TinymqError) -> None:
        """End all calls, because the leadership is lost. Never raises.

        Proposed commands may be committed or not. Queued ones were not done, and get `error`.
        """
        calls, self._proposed, self._position = self._proposed, [], None
        queued, self._queued = self._queued, {}
        self._queued_commands = self._queued_bytes = 0
        for call in calls:
            self._end(call, OutcomeUnknown(f"{self.name}: the leader changed before the command was committed"))
        for call in queued:
            self._end(call, error)

    def expired(self, call: _Call) -> None:
        """End a call whose time is up. A proposed one stays in its entry, and may still be committed."""
        if call.proposed:
            call.answer(OutcomeUnknown(f"{self.name}: not committed in time; it may be committed later"))
        else:
            del self._queued[call]
            self._count(call, -1)
            call.answer(DeadlineExceeded(f"{self.name}: the commands before this one took too long"))

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._soon(self._flush)

    def _flush(self) -> None:
        """Propose as many calls as one entry holds, oldest first."""
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
        # These calls leave the queue whether or not the entry is accepted: a refusal answers them, too.
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
        self._position, self._proposed = position, calls

    def _count(self, call: _Call, sign: int) -> None:
        self._queued_commands += sign * len(call.commands)
        self._queued_bytes += sign * call.size

    def _end(self, call: _Call, outcome: list[CommandOutcome] | TinymqError) -> None:
        if call.ticket is not None:
            self._deadlines.drop(call.ticket)
        call.answer(outcome)
