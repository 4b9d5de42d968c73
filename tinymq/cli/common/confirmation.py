"""Asks before a command destroys data: on a terminal a question, elsewhere the option --yes."""

from __future__ import annotations

import sys

from tinymq.base.errors import InvalidRequest
from tinymq.cli.common.output import ask


def confirm(action: str, yes: bool) -> None:
    """Return if the user agrees to `action`, such as "delete topic orders". Raises InvalidRequest if not."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidRequest(f"this would {action}, for good", hint="pass --yes to do it without a question")
    if ask(f"{action}, for good? [y/N] ").strip().lower() not in ("y", "yes"):
        raise InvalidRequest("nothing was changed", hint="answer y, or pass --yes")
