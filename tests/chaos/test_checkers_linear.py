"""The search for an order, on registers; and the registry's model on top of it."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from tests.chaos.story import Story
from tinymq_chaos.checkers import AnomalyKind, check
from tinymq_chaos.checkers.common.linearizability import Operation, check_linearizable

Op = tuple[str, int]


def register(state: int, op: Op) -> int | None:
    """A register: writes always succeed, and a read returns the last write."""
    kind, value = op
    return value if kind == "write" or state == value else None


def ops(*made: tuple[str, int, float, float]) -> list[Operation[Op]]:
    return [Operation((kind, value), start, end) for kind, value, start, end in made]


@pytest.mark.parametrize(
    ("history", "linearizable"),
    [
        (ops(), True),
        (ops(("write", 1, 0, 1), ("read", 1, 2, 3)), True),
        (ops(("write", 1, 0, 1), ("read", 0, 2, 3)), False),
        (ops(("write", 1, 0, 3), ("read", 0, 1, 2)), True),
        (ops(("write", 1, 0, 3), ("read", 1, 1, 2)), True),
        (ops(("write", 1, 0, 9), ("read", 1, 1, 2), ("read", 0, 3, 4)), False),
        (ops(("write", 1, 0, 9), ("read", 0, 1, 2), ("read", 1, 3, 4)), True),
        (ops(("write", 1, 0, 1), ("write", 2, 0, 1), ("read", 1, 2, 3), ("read", 2, 4, 5)), False),
        (ops(("write", 1, 0, 1), ("write", 2, 0, 1), ("read", 1, 2, 3)), True),
        (ops(("write", 1, 0, math.inf), ("read", 0, 1, 2)), True),
        (ops(("write", 1, 0, math.inf), ("read", 0, 1, 2), ("read", 1, 3, 4)), True),
        (ops(("write", 1, 0, math.inf), ("read", 1, 1, 2), ("read", 0, 3, 4)), False),
        (ops(("write", 1, 2, math.inf), ("read", 1, 0, 1)), False),
        (ops(("write", 1, 0, 1), ("read", 0, 1, 2)), True),  # equal times overlap
    ],
)
def test_registers(history: list[Operation[Op]], linearizable: bool) -> None:
    assert check_linearizable(history, 0, register).linearizable is linearizable


def by_hand(history: list[Operation[Op]]) -> bool:
    """Check every order of every choice of operations that take effect."""
    open_ended = [o for o in history if o.ended_s == math.inf]
    ended = [o for o in history if o.ended_s < math.inf]
    for count in range(len(open_ended) + 1):
        for chosen in itertools.combinations(open_ended, count):
            for order in itertools.permutations([*ended, *chosen]):
                in_time = all(a.invoked_s <= b.ended_s for a, b in itertools.combinations(order, 2))
                state: int | None = 0
                for operation in order if in_time else ():
                    state = register(state, operation.what) if state is not None else None
                if in_time and state is not None:
                    return True
    return False


def test_the_search_agrees_with_an_exhaustive_one() -> None:
    rng = random.Random(7)
    verdicts = []
    for _ in range(400):
        history = []
        for _ in range(rng.randint(1, 5)):
            start = rng.randrange(8)
            end = math.inf if rng.random() < 0.2 else start + rng.randint(1, 5)
            history.append(Operation((rng.choice(("write", "read")), rng.randrange(3)), start, end))
        verdict = check_linearizable(history, 0, register)
        assert verdict.linearizable is by_hand(history), history
        verdicts.append(verdict.linearizable)
    assert 50 < sum(verdicts) < 350


def test_an_error_names_the_wrong_parameter() -> None:
    history = ops(("write", 1, 0, 1), ("read", 1, 2, 3), ("read", 0, 4, 5), ("read", 1, 6, 7))
    verdict = check_linearizable(history, 0, register)
    assert verdict.stuck == history[2]
    assert verdict.before == 2


def test_many_operations_take_a_moment() -> None:
    """2,000 operations, four at a time, some without an answer."""
    rng = random.Random(1)
    history, state = [], 0
    for n in range(2_000):
        write = rng.random() < 0.3
        state = n if write else state
        ended = math.inf if write and n % 100 == 0 else n + rng.uniform(0.5, 4)
        history.append(Operation(("write" if write else "read", state), n - rng.random(), ended))
    verdict = check_linearizable(history, 0, register)
    assert verdict.decided


def test_a_search_that_grows_too_long_is_undecided() -> None:
    history = [Operation(("write", n), 0.0, 10.0) for n in range(20)]
    history.append(Operation(("read", 99), 1.0, 2.0))
    verdict = check_linearizable(history, 0, register, steps_max=1_000)
    assert not verdict.decided


# ---- the registry -------------------------------------------------------------------------------------------


def verdict_of(*answers: tuple[str, str, object]) -> list[str]:
    """Check calls (kind, name, answer) one after another, or overlapping from '(' to ')'.

    An answer is a topic's id, None, an error's code, a dict for all topics, or '?' for an unknown outcome.
    """
    story = Story()
    waiting = []
    for kind, name, answer in answers:
        overlaps = kind.startswith("(")
        args = {} if name == "" else {"name": name}
        call = story.begin("m", kind.lstrip("("), **args)
        waiting.append((call, answer))
        if not overlaps:
            for ended, value in waiting:
                if value == "?":
                    ended.unknown("OutcomeUnknown")
                elif isinstance(value, str) and value[0].isupper():
                    ended.failed(value)
                else:
                    ended.ok(value)
            waiting = []
    return [str(a) for a in check(story.history) if a.kind is AnomalyKind.NOT_LINEARIZABLE]


CREATE, DELETE, GET, LIST = "create_topic", "delete_topic", "get_topic", "list_topics"


@pytest.mark.parametrize(
    "answers",
    [
        [(CREATE, "u", "01"), (GET, "u", "01"), (DELETE, "u", None), (GET, "u", "UnknownTopic")],
        [(CREATE, "u", "01"), (CREATE, "u", "TopicExists"), (DELETE, "u", None), (DELETE, "u", "UnknownTopic")],
        [(CREATE, "u", "01"), (DELETE, "u", None), (CREATE, "u", "02"), (GET, "u", "02")],
        [(CREATE, "u", "?"), (GET, "u", "UnknownTopic"), (GET, "u", "01"), (DELETE, "u", None)],
        [(CREATE, "u", "?"), (GET, "u", "UnknownTopic"), (GET, "u", "UnknownTopic")],
        [(CREATE, "u", "DeadlineExceeded"), (GET, "u", "UnknownTopic")],
        [("(" + CREATE, "u", "UnknownTopic"), ("(" + GET, "u", "01"), (DELETE, "u", None), (GET, "u", "UnknownTopic")],
        [(CREATE, "u", "01"), (GET, "u", "NotReady"), (LIST, "", {"u": "01"})],
        [(CREATE, "u", "01"), (CREATE, "v", "02"), (LIST, "", {"u": "01", "v": "02"})],
        [(CREATE, "u", "01"), ("(" + DELETE, "u", None), (GET, "u", "01"), (GET, "u", "UnknownTopic")],
        [("(" + CREATE, "u", "01"), ("(" + CREATE, "v", "02"), (LIST, "", {"v": "02"}), (GET, "u", "01")],
    ],
)
def test_answers_with_an_order_are_accepted(answers: list[tuple[str, str, object]]) -> None:
    assert verdict_of(*answers) == []


@pytest.mark.parametrize(
    "answers",
    [
        [(CREATE, "u", "01"), (GET, "u", "UnknownTopic")],
        [(CREATE, "u", "01"), (GET, "u", "02")],
        [(CREATE, "u", "01"), (CREATE, "u", "02")],
        [(CREATE, "u", "01"), (DELETE, "u", None), (GET, "u", "01")],
        [(CREATE, "u", "01"), (DELETE, "u", "UnknownTopic")],
        [(CREATE, "u", "TopicExists")],
        [(DELETE, "u", None)],
        [(GET, "u", "01")],
        [(CREATE, "u", "?"), (GET, "u", "01"), (GET, "u", "UnknownTopic")],
        [(CREATE, "u", "?"), (GET, "u", "01"), (GET, "u", "02")],
        [(CREATE, "u", "01"), (DELETE, "u", None), (CREATE, "u", "?"), (GET, "u", "01")],
        [(CREATE, "u", "DeadlineExceeded"), (GET, "u", "01")],
        [(CREATE, "u", "01"), (LIST, "", {})],
        [(CREATE, "u", "01"), (CREATE, "v", "02"), (LIST, "", {"u": "01"})],
        # each name by itself is in order: u and v came in one order for one reader, and in the other for another
        [
            ("(" + CREATE, "u", "01"), ("(" + CREATE, "v", "02"), ("(" + LIST, "", {"v": "02"}),
            (LIST, "", {"u": "01"}),
        ],
    ],
)  # fmt: skip
def test_answers_without_an_order_are_found(answers: list[tuple[str, str, object]]) -> None:
    (line,) = verdict_of(*answers)
    assert "no order of the calls explains" in line
