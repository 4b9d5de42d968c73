"""The protocol between table and log, searched: every order of the steps of applications and two relays, with ends at
any step, zombies, and applications that commit out of the order of their ids, or roll back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.outbox.relay_model import Broken, Model, Rules, World
from tinymq.outbox.rules import Decision, RowFate, TransactionMark, fate_of, is_older, next_rows_max

MARK = TransactionMark(7, 2, 5)


def search(rules: Rules, **bounds: int) -> tuple[int, str]:
    """Visit every world. Returns how many there are, and what is wrong with the first one that is: "" if none is."""
    model = Model(rules, **bounds)
    seen, front = {model.first}, [model.first]
    while front:
        world = front.pop()
        try:
            wrong = judge(model, world)
            if wrong:
                return len(seen), wrong
            after = [each for each in model.steps(world) if each not in seen]
        except Broken as error:
            return len(seen), str(error)
        seen.update(after)
        front += after
    return len(seen), ""


def judge(model: Model, world: World) -> str:
    if len(set(world.log)) < len(world.log):
        return "a row is twice in the log"
    if not set(world.log) <= world.written:
        return "the log has what no application committed"
    if not any(relay.at.value for relay in world.relays):
        end = model.settled(world)
        if sorted(end.log) != sorted(end.written) or end.rows:
            return f"{sorted(end.written)} are written, and the log ends with {sorted(end.log)}"
    return ""


def test_every_committed_row_is_in_the_log_exactly_once() -> None:
    worlds, wrong = search(Rules())
    assert wrong == ""
    assert worlds > 50_000


@pytest.mark.parametrize(
    "rules",
    [
        Rules(register_first=False),
        Rules(compare_in_database=False),
        Rules(remove_before_begin=False),
        Rules(mark_before_send=False),
        Rules(by_mark=False),
    ],
    ids=["register-first", "compare-in-database", "remove-before-begin", "mark-before-send", "by-mark"],
)
def test_no_rule_can_be_left_out(rules: Rules) -> None:
    assert search(rules)[1] != ""


@pytest.mark.parametrize(
    ("newest", "fate"),
    [
        (Decision(7, 5, True), RowFate.SENT),
        (Decision(7, 5, False), RowFate.UNSENT),
        (Decision(7, 6, False), RowFate.UNSENT),
        (Decision(7, 6, True), RowFate.UNSENT),
        (Decision(7, 4, True), RowFate.UNKNOWN),
        (Decision(8, 1, False), RowFate.UNKNOWN),  # the coordinator lost its log, or forgot the id
        (None, RowFate.UNKNOWN),
    ],
)
def test_the_newest_decision_tells_the_fate_of_marked_rows(newest: Decision | None, fate: RowFate) -> None:
    assert fate_of(MARK, newest) is fate


@pytest.mark.parametrize(
    ("mark", "newest", "older"),
    [
        (MARK, Decision(7, 5, True), False),
        (MARK, Decision(7, 6, False), False),
        (MARK, None, False),
        (None, Decision(7, 1, False), False),
        (MARK, Decision(7, 6, True), True),
        (MARK, Decision(8, 5, True), True),
        (None, Decision(7, 1, True), True),
    ],
)
def test_a_database_that_lacks_what_the_log_has_is_noticed(
    mark: TransactionMark | None, newest: Decision | None, older: bool
) -> None:
    assert is_older(mark, newest) is older


def test_a_refused_transaction_is_halved_until_one_row_is_alone() -> None:
    def sizes(rows_max: int, *, refused: bool) -> Iterator[int]:
        for _ in range(5):
            rows_max = next_rows_max(rows_max, 10, refused=refused)
            yield rows_max

    assert list(sizes(10, refused=True)) == [5, 2, 1, 1, 1]
    assert list(sizes(1, refused=False)) == [2, 4, 8, 10, 10]
