"""Transactional ids as a replica of `__coordinator` has them: bytes of commands and of the state, and bounds."""

from __future__ import annotations

import random

import pytest

from tests.broker.transactions.commanded_replica import CommandedReplica
from tests.broker.transactions.test_half_messages import GOLDEN as GOLDEN_OF_HALVES
from tests.broker.transactions.test_sink_applications import GOLDEN as GOLDEN_OF_SINKS
from tinymq.base.errors import CorruptData
from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions import resolutions, transactional_ids
from tinymq.broker.transactions.commands import (
    TIMEOUT_US_MAX,
    Abort,
    Add,
    Begin,
    Command,
    Commit,
    Confirm,
    Expire,
    NoteLoss,
    Register,
    Resolve,
    TimeOut,
    pack_command,
    parse_command,
)
from tinymq.broker.transactions.rules import EXPIRY_US, Refusal, Standing
from tinymq.broker.transactions.transactional_id import Phase, TransactionalId
from tinymq.broker.transactions.transactional_ids import Applied
from tinymq.proto import group_pb2 as group_pb
from tinymq.proto import transaction_pb2 as pb

A, B, C = PartitionId(b"a" * 16, 0), PartitionId(b"a" * 16, 3), PartitionId(b"b" * 16, 1)
T = TransactionId(7, 0, 1)
ID = "billing-1"

GOLDEN: dict[str, tuple[Command, str]] = {
    "register": (Register(7), "0a0962696c6c696e672d3112020807"),
    "begin": (Begin(7, 1, 60_000_000), "0a0962696c6c696e672d311a090807100118808ece1c"),
    "add": (
        Add(T, frozenset({A, B, C})),
        "0a0962696c6c696e672d3122350a040807180112160a10616161616161616161616161616161611202000312150a10626262"
        "62626262626262626262626262120101",
    ),
    "commit": (
        Commit(T, {A: 2, C: 0}, {A: 2, B: 0}),
        "0a0962696c6c696e672d312a4e0a040807180112160a10616161616161616161616161616161611802200212160a10616161"
        "616161616161616161616161611003200012160a106262626262626262626262626262626210011800",
    ),
    "abort": (Abort(T), "0a0962696c6c696e672d3132060a0408071801"),
    "confirm": (
        Confirm(T, frozenset({A})),
        "0a0962696c6c696e672d313a1d0a040807180112150a1061616161616161616161616161616161120100",
    ),
    "time_out": (TimeOut(), "0a0962696c6c696e672d314200"),
    "note_loss": (NoteLoss(1 << 32, 9), "52080880808080101009"),
    "resolve": (Resolve(T, True), "5a080a0408071801" + "1001"),
    "expire": (Expire(), "0a0962696c6c696e672d314a00"),
}
GOLDEN_STATE = (
    "125a0a0962696c6c696e672d3110072002286432080a040807180110013a1f080118a00120012a160a1061616161616161616161616161"
    "616161120200033a1c080218a0012a150a1061616161616161616161616161616161120100"
)


class Ids(CommandedReplica):
    """Commands are applied at times that a test names."""

    def apply(self, command: Command, now_us: int = 0, name: str = ID) -> TransactionalId | Refusal | None:
        applied = self.ids.apply(pack_command(name, command), now_us)
        assert isinstance(applied, Applied)
        assert applied.name == name
        return applied.result

    @property
    def state(self) -> TransactionalId:
        return self.ids.states[ID]


def with_two_transactions() -> Ids:
    """One transaction that was committed and not confirmed everywhere, and an open one."""
    made = Ids()
    for command in (
        Register(7), Begin(7, 0, 60), Add(T, frozenset({A, B, C})), Commit(T, {A: 1, B: 2, C: 0}, {A: 1, B: 2, C: 0}),
        Confirm(T, frozenset({C})), Begin(7, 0, 60), Add(T._replace(number=2), frozenset({A})),
    ):  # fmt: skip
        assert isinstance(made.apply(command, 100), TransactionalId), command
    return made


# ---- bytes


@pytest.mark.parametrize("kind", GOLDEN)
def test_each_command_has_the_bytes_that_were_written_down(kind: str) -> None:
    command, golden = GOLDEN[kind]
    name = "" if kind in ("note_loss", "resolve") else ID
    assert pack_command(name, command).hex() == golden
    assert parse_command(bytes.fromhex(golden)) == (name, command)


def test_every_command_is_written_down() -> None:
    fields = pb.TransactionCommand.DESCRIPTOR.oneofs_by_name["command"].fields
    assert {*GOLDEN, *GOLDEN_OF_SINKS, *GOLDEN_OF_HALVES} == {field.name for field in fields}


def test_the_state_has_the_bytes_that_were_written_down_and_comes_back_from_them() -> None:
    made, loaded = with_two_transactions(), Ids()
    assert made.replica.dump().hex() == GOLDEN_STATE
    loaded.replica.load(bytes.fromhex(GOLDEN_STATE))
    assert loaded.ids.states == made.ids.states
    assert list(loaded.ids.unfinished) == [ID]
    assert loaded.ids.standing(T, A) is Standing.PUBLISH
    assert loaded.ids.owner_of(7) == ID


def test_the_phase_of_a_stored_transaction_has_to_be_one_that_exists() -> None:
    made = with_two_transactions()
    stored = group_pb.CoordinatorState.FromString(made.replica.dump())
    stored.transactional_ids[0].transactions[0].phase = 9  # type: ignore[assignment]
    with pytest.raises(CorruptData):
        made.replica.load(stored.SerializeToString())
    assert len(made.state.transactions) == 2, "nothing has changed"


@pytest.mark.parametrize("seed", range(60))
def test_damaged_bytes_change_every_replica_alike(seed: int) -> None:
    rng = random.Random(seed)
    command, _ = GOLDEN[rng.choice(list(GOLDEN))]
    data = bytearray(pack_command(ID, command))
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    replicas = [with_two_transactions() for _ in range(2)]
    for each in replicas:
        each.apply_bytes(bytes(data))
    assert replicas[0].replica.dump() == replicas[1].replica.dump(), f"seed {seed}"


def test_a_transaction_cannot_be_open_for_longer_than_its_bound() -> None:
    assert parse_command(pack_command(ID, Begin(7, 0, TIMEOUT_US_MAX))) is not None
    assert parse_command(pack_command(ID, Begin(7, 0, TIMEOUT_US_MAX + 1))) is None


# ---- decisions


def test_an_id_that_was_never_registered_refuses_its_owner() -> None:
    made = Ids()
    assert made.apply(Begin(7, 0, 60)) is Refusal.FENCED
    assert made.apply(Add(T, frozenset({A}))) is Refusal.UNKNOWN
    assert made.apply(Commit(T, {}, {})) is Refusal.UNKNOWN
    assert made.apply(Confirm(T, frozenset({A}))) is None
    assert dict(made.ids.states) == {}


def test_an_owner_with_another_producer_id_is_fenced_although_the_epochs_are_equal() -> None:
    made = Ids()
    made.apply(Register(7), 0)
    assert made.apply(Expire(), EXPIRY_US) is None
    made.apply(Register(8), EXPIRY_US)
    assert made.state.epoch == 0
    assert made.apply(Begin(7, 0, 60), EXPIRY_US) is Refusal.FENCED
    assert made.ids.owner_of(7) is None
    assert made.ids.owner_of(8) == ID


def test_an_open_transaction_is_aborted_at_the_append_time_of_its_end() -> None:
    made = with_two_transactions()
    assert made.apply(TimeOut(), 159) == made.state
    assert made.state.open is not None
    made.apply(TimeOut(), 160)
    assert made.state.open is None
    assert made.state.outcome is not None
    assert made.state.outcome.phase is Phase.ABORTED


def test_an_id_expires_after_a_week_without_a_call_and_never_with_a_transaction_that_is_not_over() -> None:
    made = with_two_transactions()
    assert made.apply(Expire(), 10 * EXPIRY_US) is made.state
    made.apply(Abort(T._replace(number=2)))
    made.apply(Confirm(T, frozenset({A, B})))
    made.apply(Confirm(T._replace(number=2), frozenset({A})))
    assert made.apply(Expire(), EXPIRY_US + 99) is made.state
    assert made.apply(Expire(), EXPIRY_US + 100) is None
    assert dict(made.ids.states) == {}
    assert made.replica.dump() == b""


# ---- after a loss


def with_a_loss() -> Ids:
    made = with_two_transactions()
    made.apply_bytes(pack_command("", NoteLoss(1 << 32, 9)))
    return made


def test_after_a_loss_nothing_from_before_is_decided_and_what_is_decided_goes_on() -> None:
    made, second = with_a_loss(), T._replace(number=2)
    assert made.ids.standing(T, A) is Standing.PUBLISH
    assert made.ids.standing(second, A) is Standing.UNRESOLVED, "it was open"
    assert made.ids.standing(T._replace(number=5), A) is Standing.UNRESOLVED, "nobody knows what was lost"
    assert made.ids.standing(TransactionId(9, 0, 1), A) is Standing.DISCARD, "it would have been begun since"
    for command in (Begin(7, 0, 60), Commit(second, {A: 1}, {A: 1}), Abort(second), TimeOut()):
        assert made.apply(command, 1000) is Refusal.FENCED
    made.apply(Confirm(T, frozenset({A, B})))
    assert not made.state.transactions


def test_after_a_loss_an_id_gets_a_producer_id_from_after_it_once_its_decisions_are_confirmed() -> None:
    made = with_a_loss()
    assert made.apply(Register(8), 200) is Refusal.USED_ID
    assert made.apply(Register(9), 200) is Refusal.TOO_MANY
    made.apply(Confirm(T, frozenset({A, B})))
    assert isinstance(made.apply(Register(9), 200), TransactionalId)
    assert (made.state.producer_id, made.state.epoch, made.state.outcome) == (9, 0, None)
    assert made.apply(Register(8), 200, "another") is Refusal.USED_ID


def test_a_loss_is_noted_once_and_stays_in_the_snapshot() -> None:
    made, loaded = with_a_loss(), Ids()
    before = made.replica.dump()
    made.apply_bytes(pack_command("", NoteLoss(1 << 32, 9)))
    made.apply_bytes(pack_command("", NoteLoss(2 << 32, 8)))
    assert made.replica.dump() == before
    loaded.replica.load(before)
    assert loaded.ids.loss == (1 << 32, 9)
    assert loaded.replica.dump() == before


def test_an_operator_decides_what_may_be_lost_and_nothing_else() -> None:
    made, open_, lost = with_a_loss(), T._replace(number=2), T._replace(number=5)

    def resolved(transaction: TransactionId, *, publish: bool) -> object:
        applied = made.ids.apply(pack_command("", Resolve(transaction, publish)), 300)
        assert applied is not None
        return applied.result

    assert resolved(T, publish=False) is Refusal.KNOWN, "it is decided, and not over"
    assert resolved(TransactionId(9, 0, 1), publish=False) is Refusal.KNOWN, "it is from after the loss"
    assert resolved(open_, publish=True) is None
    assert resolved(lost, publish=False) is None
    assert made.ids.standing(open_, A) is made.ids.standing(open_, C) is Standing.PUBLISH
    assert made.ids.standing(lost, A) is Standing.DISCARD
    assert resolved(open_, publish=True) is None, "the same decision again"
    assert resolved(open_, publish=False) is Refusal.COMMITTED
    assert resolved(lost, publish=True) is Refusal.ABORTED
    assert made.ids.standing(T, A) is Standing.PUBLISH
    loaded, stored = Ids(), made.replica.dump()
    loaded.replica.load(stored)
    assert loaded.replica.dump() == stored
    assert loaded.ids.standing(open_, A) is Standing.PUBLISH


def test_without_a_loss_nothing_is_left_to_an_operator() -> None:
    made = with_two_transactions()
    applied = made.ids.apply(pack_command("", Resolve(T._replace(number=9), True)), 300)
    assert applied is not None
    assert applied.result is Refusal.KNOWN
    assert made.ids.standing(T._replace(number=9), A) is Standing.DISCARD


def test_what_operators_decided_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolutions, "RESOLVED_MAX", 2)
    made = with_a_loss()
    for number in (5, 6, 7):
        made.apply_bytes(pack_command("", Resolve(T._replace(number=number), True)))
    standings = [made.ids.standing(T._replace(number=number), A) for number in (5, 6, 7)]
    assert standings == [Standing.UNRESOLVED, Standing.PUBLISH, Standing.PUBLISH]


# ---- bounds


def test_ids_and_unconfirmed_partitions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional_ids, "IDS_MAX", 2)
    monkeypatch.setattr(transactional_ids, "PLACES_MAX", 4)
    made = Ids()
    for number, name in enumerate(("a", "b")):
        assert isinstance(made.apply(Register(number), 0, name), TransactionalId)
        assert isinstance(made.apply(Begin(number, 0, 60), 0, name), TransactionalId)
    assert made.apply(Register(9), 0, "c") is Refusal.TOO_MANY
    assert isinstance(made.apply(Register(9), 0, "a"), TransactionalId), "it is there already"
    made.apply(Begin(0, 1, 60), 0, "a")
    first, second = TransactionId(0, 1, 2), TransactionId(1, 0, 1)
    assert isinstance(made.apply(Add(first, frozenset({A, B, C})), 0, "a"), TransactionalId)
    assert made.apply(Add(second, frozenset({A, B})), 0, "b") is Refusal.TOO_MANY
    assert isinstance(made.apply(Add(first, frozenset({A, B, C})), 0, "a"), TransactionalId), "they are counted once"
    assert isinstance(made.apply(Add(second, frozenset({A})), 0, "b"), TransactionalId)
    made.apply(Abort(first), 0, "a")
    made.apply(Confirm(first, frozenset({A, B, C})), 0, "a")
    assert isinstance(made.apply(Add(second, frozenset({A, B})), 0, "b"), TransactionalId)


def test_past_transactions_take_no_room() -> None:
    made, sizes = Ids(), set()
    made.apply(Register(7), 100)
    for number in range(1, 2001):
        transaction = T._replace(number=number)
        for command in (
            Begin(7, 0, 60), Add(transaction, frozenset({A, B})), Commit(transaction, {A: 1, B: 1}, {A: 1, B: 1}),
            Confirm(transaction, frozenset({A})), Confirm(transaction, frozenset({B})),
        ):  # fmt: skip
            assert isinstance(made.apply(command, 100), TransactionalId)
        sizes.add(len(made.replica.dump()))
    assert max(sizes) <= min(sizes) + 2, "only the number itself grows"
    assert list(made.ids.unfinished) == []
