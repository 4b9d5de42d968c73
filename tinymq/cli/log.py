"""`tinymq log`: stored bytes, looked at offline."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from tinymq.cli.output import Output

app = App(name="log", help="Look into segment files, offline.")
