"""The time budget of `make test`: a share for each room, compared with the measurements of `make durations`. No test
measures time itself, because machines are shared. durations.json is measured on a quiet machine with two cores and is
part of the repository; this test compares it with the shares.
"""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from tests.conftest import DURATIONS, SPARK, TESTS, group_of

WALL_S_MAX = 480  # of `make test` on a quiet machine
CHECK_S = 50  # of that: `make check`
WORKERS = 3  # Makefile: PARALLEL
SHARES_S = {  # of the time of all workers, by the first folder below tests/; "": the files in tests/ itself
    "": 35,
    "access": 55,
    "benchmarks": 6,
    "broker": 59,
    "chaos": 252,
    "cli": 138,
    "deploy": 1,
    "client": 179,
    "examples": 27,
    "fuzz": 17,
    "gateway": 20.5,
    "log": 44,
    "metrics": 24,
    "outbox": 12.5,
    "packaging": 6,
    "proto": 1,
    "raft": 78,
    "registry": 43,
    "rpc": 50,
    "spark": 133,
    "testing": 39,
    "tls": 60,
    "upgrade": 9,
}
ALL_LONG = re.compile(r"^pytestmark = .*\bmark\.long\b", re.MULTILINE)  # nothing of such a file is in `make test`
TOOK_S: dict[str, float] = json.loads(DURATIONS.read_text())


def room_of(group: str) -> str:
    return group.partition("/")[0] if "/" in group or group == SPARK else ""


def test_the_shares_are_within_the_budget() -> None:
    assert sum(SHARES_S.values()) <= WORKERS * (WALL_S_MAX - CHECK_S)


def test_every_file_was_measured() -> None:
    """A file that no run measured counts as nothing. `make durations FILES=...` measures it."""
    short = [path for path in TESTS.rglob("test_*.py") if not ALL_LONG.search(path.read_text())]
    files = {group_of(path) for path in short}
    assert sorted(files - TOOK_S.keys()) == []
    assert sorted(TOOK_S.keys() - files) == []


@pytest.mark.parametrize("room", SHARES_S)
def test_a_room_takes_no_more_than_its_share(room: str) -> None:
    """A room over its share: make its tests cheaper, mark tests `long`, or reduce the share of another room."""
    took_s = Counter[str]()
    for group, s in TOOK_S.items():
        took_s[room_of(group)] += s  # type: ignore[assignment]
    took_tenths = round(10 * took_s[room])  # as they are written down: a sum of fractions is a little off
    assert took_tenths <= 10 * SHARES_S[room], sorted(
        ((s, group) for group, s in TOOK_S.items() if room_of(group) == room), reverse=True
    )


def test_every_room_has_a_share() -> None:
    assert {room_of(group) for group in TOOK_S} == {*SHARES_S}
