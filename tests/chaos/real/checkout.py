"""The import path of processes that these tests start: this checkout, whatever the environment has installed."""

from __future__ import annotations

import os

from tests.test_tidy import ROOT

OWN = os.pathsep.join((str(ROOT), str(ROOT / "chaos")))  # as PYTHONPATH
