"""`tinymq log`: stored bytes, looked at offline."""

from __future__ import annotations

from cyclopts import App

app = App(name="log", help="Look into segment files, offline.")
