"""The generated half of the synchronous client is fresh, and it has all that the asynchronous client has."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from typing import Any

import pytest

from tinymq.client.facade.generate import ENDINGS, RENAMED, TWINS, Twin, generate, path_of

NAMES = [twin.name for twin in TWINS]


def classes(twin: Twin) -> tuple[type, type]:
    """The synchronous class and the asynchronous one."""
    sync = getattr(importlib.import_module(twin.home), twin.name)
    return sync, getattr(importlib.import_module(twin.module), f"Async{twin.name}")


@pytest.mark.parametrize("twin", TWINS, ids=NAMES)
def test_the_generated_code_is_fresh(twin: Twin) -> None:
    """If not: `make proto`. Formatting does not count."""
    assert ast.dump(ast.parse(path_of(twin).read_text())) == ast.dump(ast.parse(generate(twin)))


def test_no_other_file_lies_among_the_generated_ones() -> None:
    files = {path for path in path_of(TWINS[0]).parent.glob("*.py") if path.name != "__init__.py"}
    assert files == {path_of(twin) for twin in TWINS}


@pytest.mark.parametrize("twin", TWINS, ids=NAMES)
def test_both_halves_have_the_same_public_names(twin: Twin) -> None:
    sync, asynchronous = classes(twin)

    def public(of: type) -> set[str]:
        members = {name for name in (*dir(of), *inspect.get_annotations(of)) if not name.startswith("_")}
        return members - twin.internal - {"loop_thread"}

    assert public(sync) == public(asynchronous) | twin.sync_only


def sync_name(annotation: Any) -> Any:
    return re.sub(r"^Async", "", annotation) if isinstance(annotation, str) else annotation


@pytest.mark.parametrize("twin", TWINS, ids=NAMES)
def test_both_halves_have_the_same_signatures(twin: Twin) -> None:
    """Names, kinds, defaults, types and result: of the methods written by hand, too."""
    sync, asynchronous = classes(twin)
    for name, method in inspect.getmembers(asynchronous, inspect.isfunction):
        if name in twin.internal or name.startswith("_"):
            continue
        ours, theirs = inspect.signature(getattr(sync, name)), inspect.signature(method)
        expected = {key: each.replace(annotation=sync_name(each.annotation)) for key, each in theirs.parameters.items()}
        assert ours.parameters == expected, name
        assert ours.return_annotation == sync_name(theirs.return_annotation), name
        assert "async " not in (inspect.getdoc(getattr(sync, name)) or ""), name


@pytest.mark.parametrize("twin", TWINS, ids=NAMES)
def test_every_public_method_is_documented(twin: Twin) -> None:
    sync, _ = classes(twin)
    members = [(name, member) for name, member in inspect.getmembers(sync) if not name.startswith("_")]
    assert len(members) > 2
    assert not [name for name, member in members if not inspect.getdoc(member)]


def test_the_special_names_are_still_in_use() -> None:
    defined = {name for twin in TWINS for name in vars(classes(twin)[1])}
    assert defined >= ENDINGS | RENAMED.keys()
