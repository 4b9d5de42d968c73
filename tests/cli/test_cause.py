"""The cause of a failed start, found in the broker's log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tinymq.base.errors import WrongSecret
from tinymq.dev import cause
from tinymq.dev.cause import StartFailure


def _event(level: str, **fields: str) -> str:
    return json.dumps({**fields, "level": level})


STARTED = _event("info", event=cause.STARTED)
STARTING = _event("info", event="broker_state", state="starting")
REFUSED = _event("warning", event="peer not reached", code="WrongSecret", reason="does not prove", hint="one secret")
UNREACHED = _event("warning", event="peer not reached", code="BrokerUnreachable", reason="refused")
NO_LEADER = _event("warning", event="registration_failing", error="DeadlineExceeded", reason="no leader")
FAILED = _event("error", event="broker_failed", error="SyncFailed", reason="the disk", hint="check it")
BUG = _event("error", event="broken_invariant", exception="Traceback\nAssertionError: odd")
ENDED = ["error: 127.0.0.1:1 is taken [PortInUse]", "hint: stop it"]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([STARTED, STARTING, REFUSED, UNREACHED, NO_LEADER], StartFailure("WrongSecret: does not prove", "one secret")),
        ([STARTED, FAILED, REFUSED], StartFailure("SyncFailed: the disk", "check it")),
        ([STARTED, FAILED, *ENDED, NO_LEADER], StartFailure("PortInUse: 127.0.0.1:1 is taken", "stop it")),
        ([STARTED, *ENDED[:1]], StartFailure("PortInUse: 127.0.0.1:1 is taken")),
        ([STARTED, *ENDED, STARTED, STARTING, REFUSED], StartFailure("WrongSecret: does not prove", "one secret")),
        ([STARTED, "Traceback", "ImportError: nothing"], StartFailure("ImportError: nothing")),
        ([STARTED, STARTING], StartFailure("its log does not say why")),
        ([], StartFailure("its log does not say why")),
    ],
)
def test_the_cause_is_distinguished_from_its_consequences(lines: list[str], found: StartFailure) -> None:
    assert cause.of_lines(lines) == found


def test_an_error_has_its_hint_and_a_bug_its_last_line() -> None:
    line = _event("warning", code="WrongSecret", reason="no")
    assert cause.of_lines([line]).hint == WrongSecret.default_hint
    assert cause.of_lines([BUG]).message == "broken_invariant: AssertionError: odd"


def test_the_log_of_an_earlier_process_is_ignored(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(ENDED) + "\n")
    assert cause.of_log(log).message.startswith("PortInUse")
    cause.mark_start(log, 1, "2026-01-01T00:00:00Z")
    assert cause.of_log(log) == StartFailure("its log does not say why")
