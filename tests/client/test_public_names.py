"""`dir` and `help` of every public class show names that are meant for applications, and each name is documented.

public_names.txt beside this file lists them by class. A change of a public name is a change of that file, so that it is
reviewed. `python -m tests.client.test_public_names` writes the file.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FunctionType

import pytest

import tinymq
from tinymq.base import errors, extras
from tinymq.base.errors import PUBLIC
from tinymq.client.admin.access import AsyncAccess
from tinymq.client.admin.admin import AsyncAdmin
from tinymq.client.admin.group_admin import AsyncGroupAdmin
from tinymq.client.facade.generated.access import Access
from tinymq.client.facade.generated.admin import Admin
from tinymq.client.facade.generated.group_admin import GroupAdmin
from tinymq.client.facade.twins import TWINS
from tinymq.proto import errors as wire_errors
from tinymq.testing import Cluster
from tinymq.testing.faults import Faults

LISTED = Path(__file__).with_name("public_names.txt")
REACHED = (AsyncAccess, AsyncAdmin, AsyncGroupAdmin, Access, Admin, GroupAdmin)  # by `mq.admin` and `mq.access`
WITH_ERRORS = (errors, extras, wire_errors)
TESTING = (Cluster, Faults)  # the second by `cluster.faults()`
EXPORTED = tuple(getattr(tinymq, name) for name in tinymq.__all__)
CLASSES = {of.__name__: of for of in (*EXPORTED, *REACHED, *TESTING) if inspect.isclass(of)}
# Arguments that every reader of the method's name understands.
PLAIN = {"topic", "topics", "value", "key", "headers", "timestamp", "partition", "partitions", "data", "broker_id"}


def ours(of: type) -> list[type]:
    return [base for base in of.__mro__ if base.__module__.startswith("tinymq")]


@cache
def names_of(of: type) -> list[str]:
    """What completion offers: members, annotated fields, and the attributes that a method of the class assigns."""
    builtin = next((base for base in of.__mro__ if base in (BaseException, tuple)), object)
    found = set(dir(of)) - set(dir(builtin))
    for base in ours(of):
        found |= inspect.get_annotations(base).keys()
        tree = ast.parse(textwrap.dedent(_source_of(base)))
        found |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if isinstance(node.value, ast.Name) and node.value.id == "self"
        }
    return sorted(name for name in found if not name.startswith("_"))


@cache
def _source_of(of: type) -> str:
    """An error names `tinymq` as its module, and stands elsewhere."""
    if of.__module__ != PUBLIC:
        return inspect.getsource(of)
    whole = inspect.getsource(next(each for each in WITH_ERRORS if getattr(each, of.__name__, None) is of))
    node = next(each for each in ast.parse(whole).body if isinstance(each, ast.ClassDef) and each.name == of.__name__)
    return ast.get_source_segment(whole, node) or ""


def listing() -> str:
    return "".join(f"{name}: {' '.join(names_of(of))}".rstrip() + "\n" for name, of in sorted(CLASSES.items()))


def methods(of: type) -> Iterator[tuple[str, FunctionType]]:
    for name in names_of(of):
        member = inspect.getattr_static(of, name, None)
        member = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if isinstance(member, FunctionType):
            yield name, member


def documentation(of: type) -> str:
    return "\n".join(base.__doc__ or "" for base in ours(of))


def test_the_public_names_are_those_that_are_listed() -> None:
    assert listing().splitlines() == LISTED.read_text().splitlines()


@pytest.mark.parametrize("name", CLASSES)
def test_no_public_class_shows_what_only_the_client_uses(name: str) -> None:
    twin = next((twin for twin in TWINS if twin.name == name.removeprefix("Async")), None)
    assert not (twin.internal if twin is not None else set()) & set(names_of(CLASSES[name]))


@pytest.mark.parametrize("of", [tinymq.Client, tinymq.AsyncClient])
def test_a_client_takes_servers_a_context_and_settings(of: type) -> None:
    """Connectors, clocks and randomness are the core's: applications do not replace them."""
    assert list(inspect.signature(of).parameters) == ["servers", "context", "settings"]


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_member_has_a_docstring(name: str) -> None:
    of = CLASSES[name]
    assert of.__doc__
    members = [
        each for each in names_of(of) if isinstance(inspect.getattr_static(of, each, None), FunctionType | property)
    ]
    assert [each for each in members if not inspect.getdoc(getattr(of, each))] == []


@pytest.mark.parametrize("name", CLASSES)
def test_every_argument_is_explained(name: str) -> None:
    """In the method's docstring or in that of its class, by its name."""
    of = CLASSES[name]
    unexplained = [
        f"{each}({argument})"
        for each, method in methods(of)
        for argument, parameter in list(inspect.signature(method).parameters.items())[1:]
        if argument not in PLAIN and parameter.kind is not inspect.Parameter.VAR_KEYWORD
        if not re.search(rf"\b{argument}\b", f"{method.__doc__}\n{documentation(of)}")
    ]
    assert unexplained == []


@pytest.mark.parametrize("name", CLASSES)
def test_a_yes_or_no_says_when_it_is_yes(name: str) -> None:
    silent = [
        each
        for each, method in methods(CLASSES[name])
        if method.__annotations__.get("return") == "bool"
        and not re.search(r"\b(True|False|[Ww]hether)\b|\?", method.__doc__ or "")
    ]
    assert silent == []


@pytest.mark.parametrize("name", CLASSES)
def test_a_method_that_raises_says_so(name: str) -> None:
    """Those that raise by themselves. A method of a public class that has a core is judged by that of its core."""
    of = CLASSES[name]
    silent = [each for each, method in methods(of) if _raises(method) and "aise" not in (method.__doc__ or "")]
    assert silent == []


def _raises(method: FunctionType) -> bool:
    tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    return any(isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) for node in ast.walk(tree))


if __name__ == "__main__":
    LISTED.write_text(listing())
    sys.exit(0)
