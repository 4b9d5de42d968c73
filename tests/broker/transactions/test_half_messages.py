"""The replicated state of half messages: their schedule, their bounds, and what a snapshot and a loss leave of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tinymq.base.errors import CorruptData
from tinymq.base.types import PartitionId, TopicId
from tinymq.broker.transactions.commands import NoteLoss, Register, pack_command
from tinymq.broker.transactions.half import half_message as rules
from tinymq.broker.transactions.half import half_messages
from tinymq.broker.transactions.half.half_commands import (
    BeginHalf,
    ConfirmHalf,
    CountCheck,
    EndHalf,
    GiveUpHalf,
    HalfCommand,
    pack_half_command,
    parse_half_command,
)
from tinymq.broker.transactions.half.half_message import HalfMessage, transaction_of
from tinymq.broker.transactions.half.half_messages import CONTEXT_BYTES_MAX, GROUP_HALVES_MAX, HALVES_MAX, OUTCOMES_MAX
from tinymq.broker.transactions.rules import Refusal, Standing
from tinymq.broker.transactions.transactional_ids import TransactionalIds
from tinymq.proto import group_pb2 as pb

GROUP = "checkout"
A, B = (PartitionId(TopicId(b"t" * 16), number) for number in range(2))
T = transaction_of(7)
SECOND_US = 1_000_000

GOLDEN: dict[str, tuple[HalfCommand, str]] = {
    "begin_half": (
        BeginHalf(7, A, b"order 42", 6_000_000),
        "0a08636865636b6f7574a20123080712107474747474747474747474747474747422086f7264657220343228809bee02",
    ),
    "end_half": (EndHalf(T, commit=True, held=1), "0a08636865636b6f7574aa010a0a040807180110011801"),
    "count_check": (CountCheck(T, 3), "0a08636865636b6f7574b201080a04080718011003"),
    "give_up_half": (GiveUpHalf(T), "0a08636865636b6f7574ba01060a0408071801"),
    "confirm_half": (ConfirmHalf(T), "0a08636865636b6f7574c201060a0408071801"),
}
GOLDEN_STATE = (
    "a201380a04080718011208636865636b6f75741a10747474747474747474747474747474742a086f7264657220343230c096b10238c09dd810"
    "4001a201380a04080818011208636865636b6f75741a10747474747474747474747474747474742a086f7264657220343330c096b10238c0b1"
    "9f054801aa01080a04080918011001aa01060a04080a1801"
)


class State:
    """A replica's state, and the time of its next entry."""

    def __init__(self) -> None:
        self.ids = TransactionalIds()
        self.now_us = 5 * SECOND_US

    def does(self, command: HalfCommand, group: str = GROUP) -> HalfMessage | Refusal:
        applied = self.ids.apply(pack_half_command(group, command), self.now_us)
        assert applied is not None
        assert applied.name == group
        assert isinstance(applied.result, HalfMessage | Refusal)
        return applied.result

    def begin(self, producer_id: int = 7, group: str = GROUP, context: bytes = b"order 42") -> HalfMessage | Refusal:
        return self.does(BeginHalf(producer_id, A, context, rules.CHECK_AFTER_US), group)

    def snapshot(self) -> bytes:
        stored = pb.CoordinatorState()
        self.ids.dump_into(stored)
        return stored.SerializeToString(deterministic=True)

    def restart(self) -> None:
        snapshot = self.snapshot()
        self.ids = TransactionalIds()
        self.ids.load_from(pb.CoordinatorState.FromString(snapshot))
        assert self.snapshot() == snapshot

    @property
    def half(self) -> HalfMessage:
        return self.ids.half_messages.halves[T]


@pytest.fixture
def state() -> State:
    begun = State()
    assert begun.begin() == HalfMessage(T, GROUP, A, b"order 42", begun.now_us, begun.now_us + 6 * SECOND_US)
    return begun


def _due(state: State) -> Iterator[float]:
    """The seconds at which the half message is due, if each check is answered at once with "unknown"."""
    begun_us = state.now_us
    while True:
        state.restart()
        while not rules.is_due(state.half, state.now_us):
            if rules.is_given_up(state.half, state.now_us):
                return
            state.now_us += SECOND_US
        yield (state.now_us - begun_us) / SECOND_US
        state.does(CountCheck(T, state.half.checks))


@pytest.mark.parametrize("kind", GOLDEN)
def test_each_command_has_the_bytes_that_were_written_down(kind: str) -> None:
    command, golden = GOLDEN[kind]
    assert pack_half_command(GROUP, command).hex() == golden
    assert parse_half_command(bytes.fromhex(golden)) == (GROUP, command)


def test_the_state_has_the_bytes_that_were_written_down_and_comes_back_from_them(state: State) -> None:
    """One that is open and was checked, one that is committed and not confirmed, and two that are over."""
    state.does(CountCheck(T, 0))
    for producer_id, context in ((8, b"order 43"), (9, b""), (10, b"")):
        state.begin(producer_id, context=context)
        state.does(EndHalf(transaction_of(producer_id), producer_id != 10, held=1))
    for producer_id in (9, 10):
        state.does(ConfirmHalf(transaction_of(producer_id)))
    assert state.snapshot().hex() == GOLDEN_STATE
    loaded = TransactionalIds()
    loaded.load_from(pb.CoordinatorState.FromString(bytes.fromhex(GOLDEN_STATE)))
    assert dict(loaded.half_messages.halves) == dict(state.ids.half_messages.halves)
    assert dict(loaded.half_messages.groups) == {GROUP: 2}
    for producer_id, outcome in ((9, Refusal.COMMITTED), (10, Refusal.ABORTED), (11, Refusal.UNKNOWN)):
        assert loaded.half_messages.outcome(GROUP, transaction_of(producer_id)) is outcome


def test_a_half_message_is_stored_once_and_a_refused_snapshot_changes_nothing(state: State) -> None:
    stored = pb.CoordinatorState.FromString(state.snapshot())
    stored.half_messages.append(stored.half_messages[0])
    stored.applications.add(name="nightly")
    with pytest.raises(CorruptData, match="stored twice"):
        state.ids.load_from(stored)
    assert list(state.ids.half_messages.halves) == [T]
    assert not state.ids.sinks.states


def test_the_schedule_is_that_of_rocketmq(state: State) -> None:
    begun_us = state.now_us
    assert list(_due(state)) == [6 + 30 * number for number in range(15)]
    assert (state.now_us - begun_us) / SECOND_US == 6 + 30 * 15, "the sender has one more interval"
    given_up = state.does(GiveUpHalf(T))
    assert isinstance(given_up, HalfMessage)
    assert given_up.phase.value == "aborted"


def test_a_check_without_an_answer_does_not_count(state: State) -> None:
    state.now_us += 24 * 3600 * SECOND_US - 1
    assert rules.is_due(state.half, state.now_us)
    assert state.does(GiveUpHalf(T)) == state.half, "its time is not up"
    state.now_us += 1
    assert not rules.is_due(state.half, state.now_us)
    state.does(GiveUpHalf(T))
    assert not state.half.is_open


def test_an_answer_counts_once_and_for_its_own_check(state: State) -> None:
    state.does(CountCheck(T, 0))
    counted = state.half
    assert (counted.checks, counted.due_us) == (1, state.now_us + 30 * SECOND_US)
    state.now_us += SECOND_US
    for number in (0, 2, 99):
        assert state.does(CountCheck(T, number)) == counted
    assert state.does(CountCheck(T, 1), group="another") is Refusal.UNKNOWN
    assert state.half == counted


@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_stands_and_is_repeated(state: State, commit: bool) -> None:
    decided = state.does(EndHalf(T, commit, held=1))
    outcome = Refusal.COMMITTED if commit else Refusal.ABORTED
    standing = Standing.PUBLISH if commit else Standing.DISCARD
    assert decided == state.half
    for confirmed in (False, True):
        if confirmed:
            state.does(ConfirmHalf(T))
        state.restart()
        assert state.does(EndHalf(T, True, held=1)) is outcome
        assert state.does(EndHalf(T, False)) is outcome
        assert state.does(CountCheck(T, 0)) is outcome
        assert state.does(GiveUpHalf(T)) is outcome
        assert state.does(EndHalf(T, True, held=1), group="another") in (outcome, Refusal.UNKNOWN)
        assert state.ids.standing(T, A) is (Standing.DISCARD if confirmed else standing)
    assert not state.ids.half_messages.halves
    assert not state.ids.half_messages.groups


@pytest.mark.parametrize("held", [None, 0, 2])
def test_what_a_partition_does_not_hold_is_not_committed(state: State, held: int | None) -> None:
    state.does(EndHalf(T, True, held))
    assert state.half.phase.value == "aborted"


def test_a_partition_is_answered(state: State) -> None:
    assert state.ids.standing(T, A) is Standing.OPEN
    assert state.ids.standing(T, B) is Standing.DISCARD
    assert state.ids.standing(transaction_of(8), A) is Standing.DISCARD
    assert state.does(ConfirmHalf(T)) == state.half, "an open one cannot be confirmed"


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    state = State()
    monkeypatch.setattr(half_messages, "HALVES_MAX", 5)
    monkeypatch.setattr(half_messages, "GROUP_HALVES_MAX", 3)
    monkeypatch.setattr(half_messages, "CONTEXTS_BYTES_MAX", 2 * CONTEXT_BYTES_MAX)
    assert state.begin(1, context=b"x" * (CONTEXT_BYTES_MAX + 1)) is Refusal.TOO_MANY
    for producer_id in (1, 2):
        assert isinstance(state.begin(producer_id, context=b"x" * CONTEXT_BYTES_MAX), HalfMessage)
    assert state.begin(3) is Refusal.TOO_MANY
    assert isinstance(state.begin(3, context=b""), HalfMessage)
    assert state.begin(4, context=b"") is Refusal.TOO_MANY, "of this group"
    assert isinstance(state.begin(4, "other", b""), HalfMessage)
    assert state.begin(4, "third", b"") is Refusal.USED_ID
    assert isinstance(state.begin(5, "other", b""), HalfMessage)
    assert state.begin(6, "third", b"") is Refusal.TOO_MANY
    state.does(EndHalf(transaction_of(1), False))
    assert state.begin(6, "third", b"") is Refusal.TOO_MANY, "its partition has not confirmed"
    state.does(ConfirmHalf(transaction_of(1)))
    assert state.begin(1, "third", b"") is Refusal.USED_ID, "it is over, and remembered"
    assert isinstance(state.begin(6, "third", b"x" * CONTEXT_BYTES_MAX), HalfMessage)
    assert dict(state.ids.half_messages.groups) == {GROUP: 2, "other": 2, "third": 1}
    assert 3 * GROUP_HALVES_MAX > HALVES_MAX


def test_past_half_messages_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_messages, "OUTCOMES_MAX", 100)
    state, sizes = State(), set()
    for producer_id in range(1000, 3000):
        state.begin(producer_id)
        state.does(EndHalf(transaction_of(producer_id), commit=True, held=1))
        state.does(ConfirmHalf(transaction_of(producer_id)))
        if producer_id > 1100:
            sizes.add(len(state.snapshot()))
    assert len(sizes) == 1
    assert state.does(EndHalf(transaction_of(2999), True, 1)) is Refusal.COMMITTED
    assert state.does(EndHalf(transaction_of(1000), True, 1)) is Refusal.UNKNOWN
    assert sizes.pop() / 100 * OUTCOMES_MAX < 500_000


def test_after_a_loss_open_ones_are_left_to_an_operator(state: State) -> None:
    state.begin(8)
    state.does(EndHalf(transaction_of(8), commit=True, held=1))
    state.ids.apply(pack_command("", NoteLoss(2, fresh_producer_id=100)), state.now_us)
    state.restart()
    assert list(state.ids.half_messages.halves) == [transaction_of(8)], "a decision goes on"
    assert state.ids.standing(transaction_of(8), A) is Standing.PUBLISH
    assert state.ids.standing(T, A) is Standing.UNRESOLVED
    assert state.begin(99) is Refusal.USED_ID
    assert isinstance(state.begin(100), HalfMessage)


def test_commands_survive_their_bytes() -> None:
    commands: list[HalfCommand] = [
        BeginHalf(7, B, b"\0context", 6_000_000), EndHalf(T, True, 0), EndHalf(T, False), CountCheck(T, 3),
        GiveUpHalf(T), ConfirmHalf(T),
    ]  # fmt: skip
    for command in commands:
        assert parse_half_command(pack_half_command(GROUP, command)) == (GROUP, command)
    late = BeginHalf(7, A, b"", rules.CHECK_AFTER_US_MAX + 1)
    for payload in (b"", b"\xff", pack_command("billing", Register(1)), pack_half_command(GROUP, late)):
        assert parse_half_command(payload) is None
    assert State().ids.apply(b"\xff", 1) is None


def test_equal_logs_give_equal_bytes() -> None:
    one, other = State(), State()
    for state in (one, other):
        for producer_id in (9, 3, 5):
            state.begin(producer_id)
        state.does(EndHalf(transaction_of(3), commit=False))
        if state is other:
            state.restart()
        state.does(ConfirmHalf(transaction_of(3)))
    assert one.snapshot() == other.snapshot()
