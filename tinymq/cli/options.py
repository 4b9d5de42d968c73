"""Options that many verbs share: how data is printed."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

Output = Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"], help="How to print data.")]
Raw = Annotated[
    bool, Parameter(negative="", help="Print control characters of records as they are, to a terminal, too.")
]
