"""Tests of the suite, with a rule taken out: for mutants that the simulator is the wrong place to notice.

A test has noticed when it fails in its own body. One that is not there, or whose surroundings do not come about, has
noticed nothing: that is an error here.
"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TESTS = "tests."  # how the modules of tests are named
UNUSED = ("cacheprovider", "xdist", "hypothesispytest", "junitxml", "doctest", "unittest", "logging")  # plug-ins
QUIET = ("-q", "--rootdir", str(ROOT), *(word for name in UNUSED for word in ("-p", f"no:{name}")))


class TestOutcomes:
    """How each test of a run ended. A plug-in."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed: list[str] = []  # what each said
        self.broken: list[str] = []  # those that did not get as far as their own body, and modules without tests

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.when == "call":
            self.failed.append(_said(report))
        elif report.failed:
            self.broken.append(f"{report.nodeid}: {_said(report)}")
        elif report.passed and report.when == "call":
            self.passed += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(f"{report.nodeid}: {report.longreprtext}")


def failures(test: str) -> list[str]:
    """What those say that fail, of the tests that `test` names ("tests/x/test_y.py::test_z"), in this process as it is.

    Raises AssertionError where nothing is shown. Modules of tests are imported anew: what they know by name is what the
    product's modules have at the moment.
    """
    for name in [name for name in sys.modules if name.startswith(TESTS)]:
        del sys.modules[name]
    ended, said = TestOutcomes(), io.StringIO()
    with redirect_stdout(said):
        pytest.main([*QUIET, str(ROOT / test)], plugins=[ended])
    shown = not ended.broken and ended.passed + len(ended.failed) > 0
    assert shown, f"{test} shows nothing:\n{said.getvalue()}"
    return ended.failed


def _said(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longreprtext)
