"""Read, process, write: every violation is found, and what only looks like one is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.story import Story, T, good
from tinymq_chaos.checkers import AnomalyKind
from tinymq_chaos.history import Call

Spoil = Callable[[Story], None]

IN = "in#" + "0e" * 16
PLACE = {"topic": IN, "group": "g"}


def process(s: Story, *inputs: int, by: str = "a/1") -> Call:
    """Begin a transaction with one output for each of these records of partition 0, named after the record."""
    s.begin(by, "handed_out", **PLACE).ok([[0, offset] for offset in inputs])
    names = [f"{by}-{offset}" for offset in inputs]
    made_from = {name: [0, offset] for name, offset in zip(names, inputs, strict=True)}
    return s.begin(
        by, "transact", topic=T, transactional_id=by[0], parts=[[0, names]], records=names, idempotent=True,
        source=IN, group="g", inputs=made_from,
    )  # fmt: skip


def processed(s: Story, *inputs: int, by: str = "a/1") -> None:
    """The same, committed."""
    call = process(s, *inputs, by=by)
    s.stored(*call.args["records"])
    call.ok(True)


def look(s: Story, position: int) -> None:
    s.begin("o", "group_lag", **PLACE).ok([[0, position]])


def move_back(s: Story, offset: int) -> Call:
    return s.begin("m", "group_seek", partition=0, offset=offset, **PLACE)


def passed_without_an_output(s: Story) -> None:
    processed(s, 0, 1)
    process(s, 2).failed("TransactionAborted")
    look(s, 3)


def moved_back_and_not_processed_since(s: Story) -> None:
    processed(s, 0, 1, 2)
    move_back(s, 1).ok()
    processed(s, 2, by="b/1")
    look(s, 3)


def processed_by_two(s: Story) -> None:
    processed(s, 0, 1)
    processed(s, 1, by="b/1")
    look(s, 2)


def processed_by_two_before_the_target(s: Story) -> None:
    processed(s, 0, 1)
    move_back(s, 1).ok()
    processed(s, 0, 1, by="b/1")
    look(s, 2)


def never_at_the_end(s: Story) -> None:
    processed(s, 0)
    s.begin("e", "caught_up", **PLACE).failed("DeadlineExceeded")


BAD: list[tuple[Spoil, AnomalyKind]] = [
    (passed_without_an_output, AnomalyKind.UNPROCESSED),
    (moved_back_and_not_processed_since, AnomalyKind.UNPROCESSED),
    (processed_by_two, AnomalyKind.PROCESSED_TWICE),
    (processed_by_two_before_the_target, AnomalyKind.PROCESSED_TWICE),
    (never_at_the_end, AnomalyKind.NO_PROGRESS),
]


# ---- what is no anomaly --------------------------------------------------------------------------------------


def one_after_the_other(s: Story) -> None:
    processed(s, 0, 1)
    process(s, 2).failed("rolled back")
    processed(s, 2, by="b/1")
    look(s, 3)
    process(s, 3, by="b/1").unknown("OutcomeUnknown")


def moved_back(s: Story) -> None:
    processed(s, 0, 1, 2)
    look(s, 3)
    move_back(s, 1).ok()
    look(s, 1)
    processed(s, 1, 2, by="b/1")
    look(s, 3)


def moved_back_for_certain_or_not(s: Story) -> None:
    processed(s, 0, 1)
    move_back(s, 0).unknown("OutcomeUnknown")
    processed(s, 0, 1, by="b/1")
    look(s, 2)


def moved_back_in_the_end(s: Story) -> None:
    processed(s, 0, 1)
    look(s, 2)
    move_back(s, 0).ok()


@pytest.mark.parametrize(
    "spoil",
    [one_after_the_other, moved_back, moved_back_for_certain_or_not, moved_back_in_the_end],
)
def test_what_may_happen(spoil: Spoil) -> None:
    story = good()
    spoil(story)
    story.end()
    assert story.kinds() == set()


def test_records_that_a_fault_removed_may_have_no_output() -> None:
    story = good()
    moved_back_and_not_processed_since(story)
    story.history.changed("FAULT trim: of broker 1")
    story.end()
    story.history.replicas.append(replace(story.replica(1, upto=0, log=(IN, 0)), log_start=2))
    assert AnomalyKind.UNPROCESSED not in story.kinds()


def test_outputs_of_a_log_that_is_not_whole_show_nothing() -> None:
    story = good()
    passed_without_an_output(story)
    story.end()
    story.history.replicas = []
    assert AnomalyKind.UNPROCESSED not in story.kinds()
