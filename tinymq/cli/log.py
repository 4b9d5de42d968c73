"""`tinymq log`: stored bytes, looked at offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from tinymq.cli.output import Output

app = App(name="log", help="Look into segment files, offline.")
