"""The options for printing data that many verbs share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal

from cyclopts import Parameter

Output = Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"], help="The format of printed data.")]
Lines = Annotated[
    Literal["table", "json", "jsonl"],
    Parameter(name=["--output", "-o"], help="json and jsonl are the same: one JSON object per line."),
]
Raw = Annotated[bool, Parameter(negative="", help="Print control characters of records unescaped, even on a terminal.")]
LogFormat = Literal["json", "text"]


def epilogue(verb: Callable[..., Any], *examples: str) -> str:
    """What --help says below the options of a verb: its docstring without the first paragraph, and examples.

    The one line by which `commands.py` lists a verb replaces its whole docstring.
    """
    told = inspect.cleandoc(verb.__doc__ or "").partition("\n\n")[2]
    return "\n\n".join([*([told] if told else []), *(f"Example: {example}" for example in examples)])
