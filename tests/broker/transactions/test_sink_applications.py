"""Applications of Spark's sink as a replica of `__coordinator` has them: bytes of commands and of the state, bounds."""

from __future__ import annotations

import random

import pytest

from tests.broker.transactions.commanded_replica import CommandedReplica
from tinymq.base.errors import CorruptData
from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions import sink_applications, sink_rules
from tinymq.broker.transactions.commands import NoteLoss, Resolve, pack_command, parse_command
from tinymq.broker.transactions.rules import Refusal, Standing
from tinymq.broker.transactions.sink_application import Committed, SetsTransaction, SinkApplication, id_of
from tinymq.broker.transactions.sink_commands import (
    RUN_LENGTH_MAX,
    SETS_MAX,
    TIMEOUT_US_MAX,
    AddToSets,
    CommitSets,
    ConfirmSets,
    DiscardSets,
    ExpireApplication,
    OpenSet,
    SinkCommand,
    TimeOutSets,
)
from tinymq.broker.transactions.sink_rules import KEPT_TEMPORARY_US, KEPT_US, OPENED_MAX
from tinymq.broker.transactions.transactional_id import Phase
from tinymq.broker.transactions.transactional_ids import Applied, SinkApplied
from tinymq.proto import group_pb2 as group_pb

A, B = PartitionId(b"a" * 16, 0), PartitionId(b"b" * 16, 1)
APPLICATION = "nightly"

GOLDEN: dict[str, tuple[SinkCommand, str]] = {
    "open_set": (
        OpenSet(3, "run", "q", 7, 60_000_000, True),
        "0a076e696768746c7962130803120372756e1a0171200728808ece1c3001",
    ),
    "add_to_sets": (
        AddToSets(7, frozenset({A, B})),
        "0a076e696768746c796a30080712150a106161616161616161616161616161616112010012150a1062626262626262626262"
        "626262626262120101",
    ),
    "commit_sets": (
        CommitSets(3, "q", 7, (0, 2, 300), {A: 2}, {A: 2, B: 0}),
        "0a076e696768746c79723d0803120171180722040002ac022a160a1061616161616161616161616161616161180220022a16"
        "0a106262626262626262626262626262626210012000",
    ),
    "discard_sets": (DiscardSets(7), "0a076e696768746c797a020807"),
    "confirm_sets": (
        ConfirmSets(7, frozenset({A})),
        "0a076e696768746c79820119080712150a1061616161616161616161616161616161120100",
    ),
    "time_out_sets": (TimeOutSets(), "0a076e696768746c798a0100"),
    "expire_application": (ExpireApplication(), "0a076e696768746c79920100"),
}
GOLDEN_STATE = (
    "2a80010a076e696768746c7910011a01712064322c080710011a0372756e203c28a0013002380142150a1061616161616161"
    "6161616161616161611201004a0101323e080910021a0372756e203c28a001300242150a1061616161616161616161616161"
    "61616112010042150a10626262626262626262626262626262621201013801"
)


class Sinks(CommandedReplica):
    """Commands are applied at times that a test names."""

    def apply(self, command: SinkCommand, now_us: int = 0, name: str = APPLICATION) -> SinkApplication | Refusal | None:
        applied = self.ids.apply(pack_command(name, command), now_us)
        assert isinstance(applied, SinkApplied)
        assert applied.name == name
        return applied.result

    @property
    def state(self) -> SinkApplication:
        return self.ids.sinks.states[APPLICATION]

    def transaction(self, producer_id: int) -> SetsTransaction:
        return self.state.transactions[producer_id]


def opening(version: int, fresh: int, run: str = "run", query: str = "q") -> OpenSet:
    return OpenSet(version, run, query, fresh, 60)


def committing(version: int, producer_id: int, *sets: int, query: str = "q") -> CommitSets:
    counts = {A: len(sets)} if sets else {}
    return CommitSets(version, query, producer_id, sets, counts, counts)


def with_sets() -> Sinks:
    """Version 1 is committed and not confirmed, version 2 has two open sets."""
    made = Sinks()
    for command in (
        opening(1, 7), AddToSets(7, frozenset({A})), opening(1, 8), committing(1, 7, 1), opening(2, 9),
        opening(2, 10), AddToSets(9, frozenset({A, B})),
    ):  # fmt: skip
        assert isinstance(made.apply(command, 100), SinkApplication), command
    return made


# ---- bytes


@pytest.mark.parametrize("kind", GOLDEN)
def test_each_command_has_the_bytes_that_were_written_down(kind: str) -> None:
    command, golden = GOLDEN[kind]
    assert pack_command(APPLICATION, command).hex() == golden
    assert parse_command(bytes.fromhex(golden)) == (APPLICATION, command)


def test_the_state_has_the_bytes_that_were_written_down_and_comes_back_from_them() -> None:
    made, loaded = with_sets(), Sinks()
    assert made.replica.dump().hex() == GOLDEN_STATE
    loaded.replica.load(bytes.fromhex(GOLDEN_STATE))
    assert loaded.ids.sinks.states == made.ids.sinks.states
    assert list(loaded.ids.sinks.unfinished) == [APPLICATION]
    assert loaded.ids.standing(id_of(7), A) is Standing.LATER
    assert loaded.ids.standing(id_of(9), B) is Standing.OPEN
    loaded.apply(ConfirmSets(7, frozenset({A})))
    assert loaded.ids.standing(id_of(7), A) is Standing.DISCARD, "it is over"


def test_an_application_is_stored_once_and_its_phase_exists() -> None:
    made = with_sets()
    stored = group_pb.CoordinatorState.FromString(made.replica.dump())
    twice, phase = group_pb.CoordinatorState(), group_pb.CoordinatorState()
    for each in (twice, phase):
        each.CopyFrom(stored)
    twice.applications.add().CopyFrom(stored.applications[0])
    phase.applications[0].transactions[0].phase = 9  # type: ignore[assignment]
    for damaged in (twice, phase):
        with pytest.raises(CorruptData):
            made.replica.load(damaged.SerializeToString())
    assert len(made.state.transactions) == 2, "nothing has changed"


@pytest.mark.parametrize("seed", range(60))
def test_damaged_bytes_change_every_replica_alike(seed: int) -> None:
    rng = random.Random(seed)
    command, _ = GOLDEN[rng.choice(list(GOLDEN))]
    data = bytearray(pack_command(APPLICATION, command))
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    replicas = [with_sets() for _ in range(2)]
    for each in replicas:
        each.apply_bytes(bytes(data))
    assert replicas[0].replica.dump() == replicas[1].replica.dump(), f"seed {seed}"
    again = Sinks()
    again.replica.load(replicas[0].replica.dump())
    assert again.replica.dump() == replicas[0].replica.dump()


@pytest.mark.parametrize(
    "command",
    [
        OpenSet(1, "run", "q", 7, TIMEOUT_US_MAX + 1),
        OpenSet(1, "run", "q", 0, 60),
        OpenSet(1, "r" * (RUN_LENGTH_MAX + 1), "q", 7, 60),
        OpenSet(1, "run", "q" * (RUN_LENGTH_MAX + 1), 7, 60),
        CommitSets(1, "q", 7, tuple(range(SETS_MAX + 1)), {}, {}),
        CommitSets(1, "q", 7, (2, 1), {}, {}),
        CommitSets(1, "q", 7, (), {}, {}),
        CommitSets(1, "q", 0, (1,), {}, {}),
    ],
    ids=["timeout", "producer", "run", "query", "many", "order", "nothing", "whose"],
)
def test_a_command_out_of_bounds_is_none(command: SinkCommand) -> None:
    assert parse_command(pack_command(APPLICATION, command)) is None


# ---- decisions


def test_sets_of_a_run_are_numbered_and_those_of_another_run_have_another_transaction() -> None:
    made = Sinks()
    for command in (opening(1, 7), opening(1, 8), opening(1, 9, run="other")):
        made.apply(command)
    assert {name: each.opened for name, each in made.state.transactions.items()} == {7: 2, 9: 1}


def test_a_commit_publishes_its_sets_and_drops_all_others_up_to_its_version() -> None:
    made = Sinks()
    for command in (
        opening(1, 6), AddToSets(6, frozenset({A})), opening(2, 7), AddToSets(7, frozenset({A})),
        opening(2, 8, run="b"), AddToSets(8, frozenset({A})), opening(3, 9), AddToSets(9, frozenset({A})),
    ):  # fmt: skip
        made.apply(command)
    assert isinstance(made.apply(committing(2, 7, 0), 5), SinkApplication)
    assert made.state.committed == Committed(2, "q", 2)
    phases = {name: each.phase for name, each in made.state.transactions.items()}
    assert phases == {6: Phase.ABORTED, 7: Phase.COMMITTED, 8: Phase.ABORTED, 9: Phase.OPEN}
    assert made.transaction(7).sets == (0,)
    assert made.apply(opening(2, 10)) is Refusal.COMMITTED
    assert made.apply(committing(1, 6, 0)) is Refusal.REUSED, "version 1 may be another query's"
    assert made.apply(committing(2, 8, 0)) is Refusal.COMMITTED
    made.apply(DiscardSets(7))
    assert made.transaction(7).phase is Phase.COMMITTED


def test_another_query_cannot_use_a_version_again() -> None:
    made = Sinks()
    for version, query in ((3, "q"), (4, "q")):
        made.apply(CommitSets(version, query, 0, (), {}, {}))
    assert made.state.committed == Committed(4, "q", 3)
    assert made.apply(opening(0, 7, query="other")) is Refusal.REUSED
    assert made.apply(CommitSets(4, "other", 0, (), {}, {})) is Refusal.REUSED
    assert isinstance(made.apply(CommitSets(5, "other", 0, (), {}, {})), SinkApplication)
    assert made.apply(opening(4, 7, query="other")) is Refusal.REUSED, "it was the first query's"
    assert made.apply(opening(5, 7, query="q")) is Refusal.REUSED
    made.apply(CommitSets(6, "q", 0, (), {}, {}))
    assert made.apply(opening(4, 7, query="q")) is Refusal.REUSED, "another query was between"


def test_a_commit_that_lacks_a_batch_drops_the_run_and_leaves_the_version_open() -> None:
    for command in (
        CommitSets(2, "q", 9, (0,), {A: 2}, {A: 1, B: 0}),  # one is lost
        CommitSets(2, "q", 9, (0,), {A: 1}, {A: 1}),  # B did not answer
        CommitSets(2, "q", 9, (2,), {A: 1}, {A: 1, B: 0}),  # no such set
    ):
        made = with_sets()
        assert isinstance(made.apply(command), SinkApplication)
        assert made.transaction(9).phase is Phase.ABORTED
        assert made.state.committed == Committed(1, "q", 1)
        assert isinstance(made.apply(opening(2, 20)), SinkApplication)
        assert made.apply(command) is Refusal.ABORTED, "by a repeated call, too"
    made = with_sets()
    assert made.apply(committing(3, 9, 0)) is Refusal.ABORTED, "they are of version 2"


def test_ends_go_to_partitions_in_the_order_of_versions() -> None:
    made = with_sets()
    made.apply(CommitSets(2, "q", 9, (0,), {A: 1, B: 1}, {A: 1, B: 1}))
    assert [(place, each.producer_id) for place, each in sink_rules.ends(made.state)] == [(A, 7), (B, 9)]
    made.apply(ConfirmSets(7, frozenset({A})))
    assert [(place, each.producer_id) for place, each in sink_rules.ends(made.state)] == [(A, 9), (B, 9)]
    made.apply(ConfirmSets(9, frozenset({A, B})))
    assert not made.state.transactions


def test_each_call_for_a_run_renews_its_time() -> None:
    made = with_sets()
    made.apply(AddToSets(9, frozenset()), 150)
    made.apply(TimeOutSets(), 209)
    assert made.transaction(9).phase is Phase.OPEN
    made.apply(TimeOutSets(), 210)
    assert made.transaction(9).phase is Phase.ABORTED
    assert made.apply(AddToSets(9, frozenset({A})), 211) is Refusal.ABORTED
    assert made.transaction(7).phase is Phase.COMMITTED


def test_an_application_is_kept_for_thirty_days_and_a_temporary_one_for_an_hour() -> None:
    for temporary, kept_us in ((False, KEPT_US), (True, KEPT_TEMPORARY_US)):
        made = Sinks()
        made.apply(CommitSets(1, "q", 0, sets=(), expected={}, held={}, temporary=temporary), 5)
        assert made.apply(ExpireApplication(), kept_us + 4) is not None
        assert made.apply(ExpireApplication(), kept_us + 5) is None
        assert made.replica.dump() == b""
    open_ = with_sets()
    assert open_.apply(ExpireApplication(), 10 * KEPT_US) is open_.state, "sets are not over"


def test_a_name_without_sets_leaves_nothing() -> None:
    made = Sinks()
    assert made.apply(AddToSets(7, frozenset({A}))) is Refusal.ABORTED
    for command in (DiscardSets(7), ConfirmSets(7, frozenset({A})), TimeOutSets(), ExpireApplication()):
        assert made.apply(command) is None
    assert made.replica.dump() == b""


# ---- after a loss


def test_after_a_loss_what_is_open_is_left_to_an_operator_and_what_is_decided_goes_on() -> None:
    made = with_sets()
    made.apply_bytes(pack_command("", NoteLoss(1 << 32, 20)))
    assert made.ids.standing(id_of(7), A) is Standing.LATER
    assert made.ids.standing(id_of(9), A) is Standing.UNRESOLVED
    assert made.apply(opening(2, 19)) is Refusal.USED_ID
    assert made.apply(committing(2, 9, 0)) is Refusal.ABORTED
    assert isinstance(made.apply(opening(2, 20)), SinkApplication)
    assert resolved(made, id_of(7)) is Refusal.KNOWN
    assert resolved(made, id_of(9)) is None
    assert made.ids.standing(id_of(9), A) is Standing.DISCARD


def resolved(made: Sinks, transaction: TransactionId) -> object:
    applied = made.ids.apply(pack_command("", Resolve(transaction, False)), 300)
    assert isinstance(applied, Applied)
    return applied.result


# ---- bounds


def test_applications_runs_partitions_and_sets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("APPLICATIONS_MAX", 2), ("PLACES_MAX", 3), ("NAMED_MAX", 3)):
        monkeypatch.setattr(sink_applications, name, value)
    monkeypatch.setattr(sink_rules, "RUNS_MAX", 2)
    made = Sinks()
    for fresh, name in ((7, "a"), (8, "b")):
        assert isinstance(made.apply(opening(1, fresh), 0, name), SinkApplication)
    assert made.apply(opening(1, 9), 0, "c") is Refusal.TOO_MANY
    assert isinstance(made.apply(opening(1, 9, run="x"), 0, "a"), SinkApplication)
    assert made.apply(opening(1, 10, run="y"), 0, "a") is Refusal.TOO_MANY
    assert isinstance(made.apply(AddToSets(7, frozenset({A, B})), 0, "a"), SinkApplication)
    assert made.apply(AddToSets(8, frozenset({A, B})), 0, "b") is Refusal.TOO_MANY
    assert isinstance(made.apply(AddToSets(8, frozenset({A})), 0, "b"), SinkApplication)
    for _ in range(3):
        made.apply(opening(1, 11), 0, "a")
        made.apply(opening(1, 12), 0, "b")
    assert isinstance(made.apply(CommitSets(1, "q", 7, (0, 1), {A: 1}, {A: 1, B: 0}), 0, "a"), SinkApplication)
    assert made.apply(CommitSets(1, "q", 8, (0, 1), {A: 1}, {A: 1}), 0, "b") is Refusal.TOO_MANY
    made.apply(ConfirmSets(7, frozenset({A, B})), 0, "a")
    assert isinstance(made.apply(CommitSets(1, "q", 8, (0, 1), {A: 1}, {A: 1}), 0, "b"), SinkApplication)


def test_decided_versions_and_attempts_are_bounded() -> None:
    made = Sinks()
    for version in range(1, 7):
        made.apply(opening(version, version), 0)
        made.apply(AddToSets(version, frozenset({A})), 0)
        refused = made.apply(committing(version, version, 0), 0)
        assert (refused is Refusal.TOO_MANY) is (version == 6)
    assert made.transaction(6).phase is Phase.OPEN, "it may be committed later"
    full = SinkApplication(transactions={7: SetsTransaction(7, 1, "run", 60, 60, opened=OPENED_MAX)})
    assert sink_rules.open_set(full, opening(1, 8), 0) is Refusal.TOO_MANY


def test_past_versions_take_no_room() -> None:
    made, sizes = Sinks(), set()
    for version in range(1000, 3000):
        for command in (
            opening(version, version), AddToSets(version, frozenset({A, B})), opening(version, 9, run="b"),
            CommitSets(version, "q", version, (0,), {A: 1, B: 1}, {A: 1, B: 1}),
            ConfirmSets(version, frozenset({A, B})),
        ):  # fmt: skip
            assert isinstance(made.apply(command, 100), SinkApplication)
        sizes.add(len(made.replica.dump()))
    assert len(sizes) == 1
    assert list(made.ids.sinks.unfinished) == []
