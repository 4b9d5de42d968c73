"""Where processes of these tests import from: this checkout, whatever the environment has installed."""

from __future__ import annotations

import os

from tests.test_tidy import ROOT

OWN = os.pathsep.join((str(ROOT), str(ROOT / "chaos")))  # as PYTHONPATH
