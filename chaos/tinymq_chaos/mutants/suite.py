"""Run tests of the suite while a mutant is applied, for mutants that no simulated run can show.

A test notices a mutant when the test fails in its own body. A test that does not exist, or whose fixtures fail, notices
nothing: that is an error here.
"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TESTS = "tests."  # the package of all test modules
UNUSED = ("cacheprovider", "xdist", "hypothesispytest", "junitxml", "doctest", "unittest", "logging")  # plug-ins
QUIET = ("-q", "--rootdir", str(ROOT), *(word for name in UNUSED for word in ("-p", f"no:{name}")))


class TestOutcomes:
    """A pytest plug-in that records how each test of a run ended."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed: list[str] = []  # the messages of the failures
        self.broken: list[str] = []  # tests that failed outside their own body, and modules that were not collected

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.when == "call":
            self.failed.append(_message(report))
        elif report.failed:
            self.broken.append(f"{report.nodeid}: {_message(report)}")
        elif report.passed and report.when == "call":
            self.passed += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(f"{report.nodeid}: {report.longreprtext}")


def failures(test: str) -> list[str]:
    """Run the tests that `test` names ("tests/x/test_y.py::test_z") in this process; return the messages of those that
    fail.

    Raises AssertionError if no test ran. Modules of tests are imported again, so that the names that they import from
    the product are those of the mutant.
    """
    for name in [name for name in sys.modules if name.startswith(TESTS)]:
        del sys.modules[name]
    ended, output = TestOutcomes(), io.StringIO()
    with redirect_stdout(output):
        pytest.main([*QUIET, str(ROOT / test)], plugins=[ended])
    shown = not ended.broken and ended.passed + len(ended.failed) > 0
    assert shown, f"{test} shows nothing:\n{output.getvalue()}"
    return ended.failed


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longreprtext)
