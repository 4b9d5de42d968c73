"""A small world of half messages, as states and steps: the replicated rules that ship, through the bytes of commands
and snapshots, and around them a sender, checkers, a coordinator that fails, and a partition whose leader changes.

One half message. Its sender commits a local transaction or rolls it back, and tells the coordinator, or dies. Checkers
are asked and answer what they find: late, twice, or never. Commands wait in the coordinator's tail, and are applied or
lost with the leader. Time passes from one check to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tinymq.base.types import PartitionId, TopicId
from tinymq.broker.transactions.half import half_message as rules
from tinymq.broker.transactions.half.half_commands import (
    BeginHalf,
    ConfirmHalf,
    CountCheck,
    EndHalf,
    GiveUpHalf,
    HalfCommand,
    pack_half_command,
)
from tinymq.broker.transactions.half.half_message import HalfMessage, transaction_of
from tinymq.broker.transactions.rules import Refusal, Standing
from tinymq.broker.transactions.transactional_ids import TransactionalIds
from tinymq.proto import group_pb2 as pb

GROUP = "checkout"
PLACE = PartitionId(TopicId(b"t" * 16), 0)
HALF = transaction_of(7)
BEGUN_US = 1_000


class Local(Enum):
    """The sender's own transaction."""

    RUNNING = "running"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


@dataclass(frozen=True)
class HalfScope:
    """How much may happen in one world."""

    crashes: int = 1  # of the coordinator
    elections: int = 0  # of the partition's leader
    asks: int = 3  # checks that are sent
    deaths: int = 1  # of the sender
    hasty: bool = False  # the sender commits before it knows that its batch is staged
    late: bool = False  # answers stay on their way, and arrive again
    patient: bool = False  # the sender also believes an answer that says late that its batch is staged


class State(NamedTuple):
    """One state of the world."""

    snapshot: bytes  # of the coordinator's applied state
    tail: tuple[bytes, ...] = ()  # commands that are appended, and not applied
    now_us: int = BEGUN_US
    local: Local = Local.RUNNING
    dead: bool = False
    answers: frozenset[tuple[int, str]] = frozenset()  # (check, verdict) on their way
    asked: int = 0
    said: frozenset[str] = frozenset()  # outcomes that a sender or a checker named
    unknowns: frozenset[int] = frozenset()  # checks that were answered so
    told: frozenset[Refusal] = frozenset()  # what callers heard: COMMITTED or ABORTED
    staged: str = "none"  # "none", "appended", "staged", "visible", "dropped"
    ending: str = ""  # the end in the partition's tail
    crashes: int = 0
    elections: int = 0
    rash: bool = False  # the local transaction was committed before the batch was staged
    unstaged: bool = False  # the coordinator has found nothing staged for so long that it ends the message


def loaded(state: State) -> TransactionalIds:
    ids = TransactionalIds()
    ids.load_from(pb.CoordinatorState.FromString(state.snapshot))
    return ids


def snapshot_of(ids: TransactionalIds) -> bytes:
    stored = pb.CoordinatorState()
    ids.dump_into(stored)
    return stored.SerializeToString(deterministic=True)


def half_of(ids: TransactionalIds) -> HalfMessage | None:
    return ids.half_messages.halves.get(HALF)


class HalfWorld:
    """The steps that can happen in a scope."""

    def __init__(self, scope: HalfScope) -> None:
        self.scope = scope

    def first(self) -> State:
        ids = TransactionalIds()
        begin = BeginHalf(HALF.producer_id, PLACE, b"order 42", rules.CHECK_AFTER_US)
        assert ids.apply(pack_half_command(GROUP, begin), BEGUN_US) is not None
        return State(snapshot_of(ids))

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        ids = loaded(state)
        half = half_of(ids)
        yield from self._sender(state)
        yield from self._checkers(state, half)
        yield from self._partition(state, ids, half)
        yield from self._coordinator(state, ids, half)  # it changes `ids`

    # ---- the sender, and checkers

    def _sender(self, state: State) -> Iterator[tuple[str, State]]:
        if state.dead:
            return
        heard = state.staged == "staged" and (not state.unstaged or self.scope.patient)
        if state.local is Local.RUNNING and (heard or self.scope.hasty):
            yield "the local transaction commits", state._replace(local=Local.COMMITTED, rash=not heard)
            yield "the local transaction is rolled back", state._replace(local=Local.ROLLED_BACK)
        verdict = {Local.COMMITTED: "commit", Local.ROLLED_BACK: "rollback"}.get(state.local)
        if verdict is not None and verdict not in state.said:
            yield f"the sender says {verdict}", self._say(state, verdict)
        if self.scope.deaths and not state.unstaged:
            local = Local.ROLLED_BACK if state.local is Local.RUNNING else state.local
            yield "the sender dies", state._replace(dead=True, local=local)

    def _checkers(self, state: State, half: HalfMessage | None) -> Iterator[tuple[str, State]]:
        due = half is not None and rules.is_due(half, state.now_us) and state.staged == "staged"
        if due and half is not None and state.asked < self.scope.asks:
            asked = state._replace(asked=state.asked + 1)
            yield "a checker is asked, and never answers", asked
            verdict = {
                Local.COMMITTED: "commit", Local.ROLLED_BACK: "rollback", Local.RUNNING: "unknown",
            }[state.local]  # fmt: skip
            yield f"a checker finds {verdict}", asked._replace(answers=state.answers | {(half.checks, verdict)})
        for number, verdict in sorted(state.answers):
            kept = state.answers if self.scope.late else state.answers - {(number, verdict)}
            arrived = state._replace(answers=kept)
            if verdict != "unknown":
                after = self._say(arrived, verdict)
            else:
                command = CountCheck(HALF, number)
                counted = arrived.unknowns | {number}
                after = _append(arrived._replace(unknowns=counted), command)
            if after != state:
                yield f"check {number} is answered: {verdict}", after

    def _say(self, state: State, verdict: str) -> State:
        """A sender or a checker tells the coordinator, which asks the partition's leader first."""
        held = int(state.staged in ("staged", "visible"))
        said = state._replace(said=state.said | {verdict})
        return _append(said, EndHalf(HALF, commit=verdict == "commit", held=held))

    # ---- the coordinator

    def _coordinator(
        self, state: State, ids: TransactionalIds, half: HalfMessage | None
    ) -> Iterator[tuple[str, State]]:
        if state.tail:
            first, *rest = state.tail
            applied = ids.apply(first, state.now_us)
            assert applied is not None
            after = state._replace(snapshot=snapshot_of(ids), tail=tuple(rest), told=_told(state, applied.result))
            yield "a command is applied", after
        if state.tail and state.crashes < self.scope.crashes:
            yield "the coordinator fails", state._replace(tail=(), crashes=state.crashes + 1)
        if half is not None and half.is_open:
            if rules.is_given_up(half, state.now_us):
                yield "it is given up", _append(state, GiveUpHalf(HALF))
            elif state.staged in ("none", "appended"):
                yield "nothing is staged for long", _append(state._replace(unstaged=True), EndHalf(HALF, commit=False))
            elif state.now_us < half.due_us:
                yield "time passes", state._replace(now_us=half.due_us)
            elif state.asked >= self.scope.asks and not state.answers:
                yield "a day passes", state._replace(now_us=half.begun_us + rules.OPEN_US_MAX)

    # ---- the partition

    def _partition(self, state: State, ids: TransactionalIds, half: HalfMessage | None) -> Iterator[tuple[str, State]]:
        standing = ids.standing(HALF, PLACE)
        if state.staged == "none" and not state.dead and standing is Standing.OPEN:
            yield "the batch is appended", state._replace(staged="appended")
        elif state.staged == "appended":
            yield "the batch is applied", state._replace(staged="staged")
        if state.staged in ("appended", "staged") and not state.ending and standing is not Standing.OPEN:
            assert standing in (Standing.PUBLISH, Standing.DISCARD), standing
            yield f"{standing.value} is appended", state._replace(ending=standing.value)
        if state.ending and state.staged == "staged":
            result = "visible" if state.ending == "publish" else "dropped"
            yield f"{state.ending} is applied", state._replace(staged=result, ending="")
        if half is not None and not half.is_open and state.staged in ("none", "visible", "dropped"):
            yield "the partition confirms", _append(state, ConfirmHalf(HALF))
        if state.elections < self.scope.elections and (state.ending or state.staged == "appended"):
            lost = "none" if state.staged == "appended" else state.staged
            yield "another leader", state._replace(staged=lost, ending="", elections=state.elections + 1)


def _append(state: State, command: HalfCommand) -> State:
    payload = pack_half_command(GROUP, command)
    return state if payload in state.tail else state._replace(tail=(*state.tail, payload))


def _told(state: State, result: object) -> frozenset[Refusal]:
    """What the caller hears: a command has decided, or found it decided."""
    if isinstance(result, HalfMessage) and not result.is_open:
        return state.told | {rules.outcome_of(result.phase)}
    return state.told | {result} if result in (Refusal.COMMITTED, Refusal.ABORTED) else state.told


def anomaly(state: State) -> str:
    """Name the promise that this state breaks; "": it breaks none."""
    if len(state.told) > 1:
        return "two callers heard different outcomes"
    if state.staged == "visible" and "commit" not in state.said:
        return "a message is visible, and nobody has committed it"
    if state.staged == "visible" and state.local is not Local.COMMITTED:
        return "a message is visible, and the local transaction is not committed"
    half = half_of(loaded(state))
    dropped = half is not None and half.phase.value == "aborted"
    checked = len(state.unknowns) >= rules.CHECKS_MAX
    day = state.now_us - BEGUN_US >= rules.OPEN_US_MAX
    if dropped and state.local is Local.COMMITTED and not (state.rash or checked or day):
        return "a committed message is dropped before its schedule is over"
    return ""


def left_over(state: State) -> str:
    """Name the promise that this last state of a path breaks; "": it breaks none."""
    if state.staged in ("appended", "staged"):
        return "a batch is staged for ever"
    if half_of(loaded(state)) is not None:
        return "a half message is never over"
    if Refusal.COMMITTED in state.told and state.staged != "visible":
        return "a committed message is not visible"
    return ""
