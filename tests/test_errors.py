"""Every error has a code, a retriable flag, and a hint."""

from __future__ import annotations

import re

import pytest

from tinymq.base import errors
from tinymq.base.errors import BY_CODE, DiskFull, OutOfDescriptors, TinymqError, Unavailable

KINDS = sorted(BY_CODE.values(), key=lambda kind: kind.code)


@pytest.mark.parametrize("kind", [k for k in KINDS if k.__module__ == errors.__name__], ids=lambda kind: kind.code)
def test_code_retriable_and_hint(kind: type[TinymqError]) -> None:
    error = kind("what happened")
    assert error.code == kind.__name__
    assert error.retriable == issubclass(kind, Unavailable | DiskFull | OutOfDescriptors)
    assert error.hint, "says what to do"
    assert str(error) == f"what happened ({error.hint})"


def test_the_tree_is_drawn_whole() -> None:
    drawn = set(re.findall(r"[A-Z][a-zA-Z]+", (errors.__doc__ or "").split("Operating errors")[0]))
    assert {kind.code for kind in KINDS if kind.__module__ == errors.__name__} <= drawn


def test_a_hint_of_its_own_wins() -> None:
    assert TinymqError("what happened").hint == ""
    assert DiskFull("what happened", hint="another").hint == "another"
