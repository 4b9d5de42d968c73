"""The generated classes are fresh, and both public halves of the client have the same names and signatures."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from typing import Any

import pytest

from tinymq.client.facade.generate import ASYNC_SPECIAL, ENDINGS, RENAMED, generate, path_of
from tinymq.client.facade.twins import HALVES, TWINS, Half, Twin

NAMES = [twin.name for twin in TWINS]


def classes(twin: Twin) -> tuple[type, type]:
    """The synchronous class and the asynchronous one."""
    sync = getattr(importlib.import_module(twin.sync.home), twin.name)
    return sync, getattr(importlib.import_module(twin.async_home), f"Async{twin.name}")


def core(twin: Twin) -> type:
    """The class that does the work."""
    found: type = getattr(importlib.import_module(twin.module), twin.source)
    return found


def public(of: type) -> set[str]:
    return {name for name in (*dir(of), *inspect.get_annotations(of)) if not name.startswith("_")}


@pytest.mark.parametrize("half", HALVES, ids=[half.name for half in HALVES])
def test_the_generated_code_is_fresh(half: Half) -> None:
    """If not: `make proto`. Formatting does not count."""
    assert ast.dump(ast.parse(path_of(half).read_text())) == ast.dump(ast.parse(generate(half)))


def test_no_other_file_lies_among_the_generated_ones() -> None:
    folders = {path_of(half).parent for half in HALVES}
    files = {path for folder in folders for path in folder.glob("*.py") if path.name != "__init__.py"}
    assert files == {path_of(half) for half in HALVES}


@pytest.mark.parametrize("twin", TWINS, ids=NAMES)
def test_both_halves_have_the_public_names_of_the_class_that_does_the_work(twin: Twin) -> None:
    sync, asynchronous = classes(twin)
    assert public(asynchronous) == public(core(twin)) - twin.internal
    assert public(sync) == public(asynchronous) | twin.sync_only


def sync_name(annotation: Any) -> Any:
    return re.sub(r"\bAsync", "", annotation) if isinstance(annotation, str) else annotation


@pytest.mark.parametrize("twin", TWINS, ids=NAMES)
def test_the_internal_names_exist(twin: Twin) -> None:
    assert twin.internal <= public(core(twin))


@pytest.mark.parametrize("twin", TWINS, ids=NAMES)
def test_both_halves_have_the_same_signatures(twin: Twin) -> None:
    """Names, kinds, defaults, types and result: of the methods written by hand, too."""
    sync, asynchronous = classes(twin)
    for name, method in inspect.getmembers(asynchronous, inspect.isfunction):
        if name.startswith("_"):
            continue
        ours, theirs = inspect.signature(getattr(sync, name)), inspect.signature(method)
        expected = {key: each.replace(annotation=sync_name(each.annotation)) for key, each in theirs.parameters.items()}
        assert ours.parameters == expected, name
        assert ours.return_annotation == sync_name(theirs.return_annotation), name
        assert not re.search(r"\basync\s", inspect.getdoc(getattr(sync, name)) or ""), name


@pytest.mark.parametrize("twin", [twin for twin in TWINS if twin.has_core], ids=lambda twin: twin.name)
def test_an_asynchronous_method_is_what_it_is_in_the_core(twin: Twin) -> None:
    """A coroutine function stays one: frameworks look at it."""
    _, asynchronous = classes(twin)
    for name, method in inspect.getmembers(core(twin), inspect.isfunction):
        if name not in twin.internal and (not name.startswith("_") or name in ("__aenter__", "__aexit__")):
            assert inspect.iscoroutinefunction(getattr(asynchronous, name)) == inspect.iscoroutinefunction(method), name


@pytest.mark.parametrize("twin", TWINS, ids=NAMES)
def test_every_public_method_is_documented(twin: Twin) -> None:
    for of in classes(twin):
        members = [(name, member) for name, member in inspect.getmembers(of) if not name.startswith("_")]
        assert not [name for name, member in members if not inspect.getdoc(member)]


def test_the_special_names_are_still_in_use() -> None:
    defined = {name for twin in TWINS for name in vars(core(twin))}
    assert defined >= ENDINGS | RENAMED.keys() | ASYNC_SPECIAL
