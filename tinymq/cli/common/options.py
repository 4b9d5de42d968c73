"""The options for printing data that many verbs share."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

Output = Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"], help="The format of printed data.")]
Lines = Annotated[
    Literal["table", "json", "jsonl"],
    Parameter(name=["--output", "-o"], help="json and jsonl are the same: one JSON object per line."),
]
Raw = Annotated[bool, Parameter(negative="", help="Print control characters of records unescaped, even on a terminal.")]
LogFormat = Literal["json", "text"]
