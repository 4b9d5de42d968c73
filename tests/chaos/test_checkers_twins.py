"""Second processes with the number of a broker: every violation is found, and what only looks like one is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.story import Story, good
from tinymq_chaos.broker_changes import TwinSpan
from tinymq_chaos.checkers import AnomalyKind

Spoil = Callable[[Story], None]
TOLD = "the peer refuses: another process of broker 2 is heard"


def twin(
    s: Story, *, copied: bool = True, let_in: tuple[int, ...] = (), told: str = TOLD, lived_s: float = 2.0
) -> None:
    span = TwinSpan(2, copied, s.now_s, let_in=[*let_in], told=[told] if told else [])
    s.history.twins.append(span)
    s.now_s += lived_s
    span.until_s = s.now_s


def a_copy_takes_part(s: Story) -> None:
    twin(s, let_in=(1,))


def a_copy_is_told_nothing(s: Story) -> None:
    twin(s, told="")


def a_copy_is_told_something_else(s: Story) -> None:
    twin(s, told="broker 1 closed the connection")


BAD: list[tuple[Spoil, AnomalyKind]] = [
    (a_copy_takes_part, AnomalyKind.SECOND_BROKER),
    (a_copy_is_told_nothing, AnomalyKind.SECOND_BROKER),
    (a_copy_is_told_something_else, AnomalyKind.SECOND_BROKER),
]


def a_copy_is_refused(s: Story) -> None:
    twin(s)
    s.end()


def a_copy_ends_before_it_is_told(s: Story) -> None:
    twin(s, told="", lived_s=0.5)
    s.end()


def an_empty_one_takes_the_place_of_a_broker(s: Story) -> None:
    twin(s, copied=False, let_in=(1, 3), told="")
    s.end()


@pytest.mark.parametrize(
    "tell",
    [a_copy_is_refused, a_copy_ends_before_it_is_told, an_empty_one_takes_the_place_of_a_broker],
    ids=lambda tell: tell.__name__,
)
def test_each_harmless_history_has_no_anomalies(tell: Spoil) -> None:
    story = good()
    tell(story)
    assert story.kinds() == set()
