"""Each verb's --help teaches with examples, and the examples are commands that exist."""

from __future__ import annotations

import re
import shlex

import pytest

from tinymq.cli.commands import app
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run

VERBS = sorted(name for name in app if not name.startswith("-"))
WIDE = "300"  # columns, so that no example is wrapped


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_has_examples_that_parse(
    verb: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", WIDE)
    assert run([verb, "--help"]) == Exit.OK
    examples = re.findall(r"^(?:Example|bash|zsh|fish): (.*)$", capfd.readouterr().out, re.MULTILINE)
    assert examples
    for example in examples:
        ours = [part for part in re.split(r"[;|>]", example) if part.strip().startswith("tinymq ")]
        assert ours
        for command in ours:
            app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)
