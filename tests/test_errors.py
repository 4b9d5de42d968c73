"""Every error has a code, a retriable flag, and a hint."""

from __future__ import annotations

import copy
import re
import traceback
from pathlib import Path

import pytest

import tinymq
from tinymq.base import errors
from tinymq.base.errors import BY_CODE, DiskFull, OutOfDescriptors, TinymqError, Unavailable, UnknownTopic
from tinymq.proto.errors import RetriableUnknownError, UnknownError

KINDS = sorted(BY_CODE.values(), key=lambda kind: kind.code)
PAGE = Path(__file__).resolve().parents[1] / "docs" / "errors.md"


@pytest.mark.parametrize("kind", [k for k in KINDS if k.__module__ == errors.PUBLIC], ids=lambda kind: kind.code)
def test_code_retriable_and_hint(kind: type[TinymqError]) -> None:
    error = kind("what happened")
    assert error.code == kind.__name__
    assert error.retriable == issubclass(kind, Unavailable | DiskFull | OutOfDescriptors)
    assert error.hint, "says what to do"
    assert str(error) == f"what happened ({error.hint})"


def test_the_tree_is_drawn_whole() -> None:
    drawn = set(re.findall(r"[A-Z][a-zA-Z]+", (errors.__doc__ or "").split("Operating errors")[0]))
    assert {kind.code for kind in KINDS if kind.__module__ == errors.PUBLIC} - {UnknownError.code} <= drawn


def test_a_hint_of_its_own_wins() -> None:
    assert TinymqError("what happened").hint == ""
    assert DiskFull("what happened", hint="another").hint == "another"


def public() -> list[type[Exception]]:
    """The exceptions among the public names, but for those that a handler raises."""
    named = [getattr(tinymq, name) for name in tinymq.__all__]
    own = (tinymq.Reject, tinymq.Retry)
    return [each for each in named if isinstance(each, type) and issubclass(each, Exception) and each not in own]


def test_every_error_is_a_public_name() -> None:
    """All that a client can raise. The outbox's own error ends its relay, which is a command."""
    raised = {kind for kind in KINDS if kind.__module__.startswith("tinymq") and "outbox" not in kind.__module__}
    assert raised - set(public()) == {RetriableUnknownError}, "which is caught as UnknownError"


def test_a_traceback_names_the_module_to_import_an_error_from() -> None:
    assert {each.__module__ for each in public()} == {"tinymq"}
    (line,) = traceback.format_exception_only(UnknownTopic("there is none", hint=""))
    assert line == "tinymq.UnknownTopic: there is none\n"


def test_a_copy_of_an_error_is_whole() -> None:
    """Also one that crosses processes: `copy` makes it by the same protocol as multiprocessing."""
    back = copy.copy(UnknownTopic("there is none", hint="make it", topic="orders"))
    assert type(back) is UnknownTopic
    assert (back.message, back.hint, back.detail) == ("there is none", "make it", {"topic": "orders"})


def test_the_page_has_every_error() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (yes)? ?\| \S.* \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(each.__name__ for each in public())
    retriable = {name for name, again in rows if again}
    assert retriable == {each.__name__ for each in public() if getattr(each, "retriable", False)}
