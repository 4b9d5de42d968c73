"""The leaders, from brokers' log lines: every change is observed, and a dead broker leads nothing."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest

from tests.chaos.real.stand_in import StandIn
from tinymq_chaos.history import METADATA, History
from tinymq_chaos.real.product.leader_log import FileTail, LeaderLog, event_of, log_of, name_logs

ID = "0123456789abcdef0123456789abcdef"
GROUP = f"{ID[:8]}/1"
LOG = (f"t#{ID}", 1)


class Scene:
    """Brokers whose logs a test writes."""

    def __init__(self, folder: Path) -> None:
        ticks = count()
        self.target = StandIn(3, folder)
        self.history = History(lambda: float(next(ticks)))
        self.watching = LeaderLog(self.target, self.history)

    def say(self, broker: int, event: str, **values: object) -> None:
        with self.target.log_file(broker).open("a") as file:
            file.write(json.dumps({"event": event, **values}) + "\n")

    def changes(self, broker: int, role: str, term: int, group: str = GROUP) -> None:
        self.say(broker, "replica_changed", group=group, role=role, term=term, leader=None)

    @property
    def led(self) -> list[tuple[int, int, bool]]:
        """Return (term, broker, whether it is over) of the observations."""
        return [(led.term, led.broker, led.until_s is not None) for led in self.history.leaders.values()]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_leader_is_seen_from_its_beginning_to_its_end(scene: Scene) -> None:
    scene.watching.look()
    scene.changes(1, "leader", 3)
    scene.watching.look()
    assert scene.led == [(3, 1, False)]
    scene.changes(1, "follower", 4)
    scene.changes(2, "leader", 4)
    scene.watching.look()
    assert scene.led == [(3, 1, True), (4, 2, False)]


def test_a_term_between_two_looks_is_seen(scene: Scene) -> None:
    scene.changes(1, "leader", 3)
    scene.changes(1, "candidate", 3)
    scene.changes(1, "leader", 5)
    scene.watching.look()
    assert scene.led == [(3, 1, True), (5, 1, False)]


def test_a_dead_broker_leads_nothing(scene: Scene) -> None:
    scene.changes(1, "leader", 3)
    scene.changes(1, "leader", 2, "metadata")
    scene.watching.look()
    scene.changes(1, "leader", 4)  # its last lines, read after its death
    scene.target.kill(1)
    scene.watching.look()
    assert scene.led == [(3, 1, True), (2, 1, True), (4, 1, True)]


def test_a_broker_that_was_down_between_two_looks_leads_nothing_since(scene: Scene) -> None:
    scene.changes(1, "leader", 3)
    scene.watching.look()
    scene.target.kill(1)
    scene.target.start(1)
    scene.say(1, "process_started")
    scene.watching.look()
    assert scene.led == [(3, 1, True)]


def test_damage_on_an_untouched_disk_is_reported(scene: Scene) -> None:
    scene.say(1, "replica_repairs", group=GROUP, reason="the entry is damaged")
    scene.say(2, "replica_repairs", group="metadata", reason="the entry is damaged")
    scene.watching.look(hurt={1})
    assert [(found.broker, found.log) for found in scene.history.found] == [(2, METADATA)]
    assert "the entry is damaged" in scene.history.found[0].reason


def test_observed_logs_get_their_names_at_the_end(scene: Scene) -> None:
    scene.changes(1, "leader", 3)
    scene.changes(2, "leader", 1, "metadata")
    scene.changes(3, "leader", 1, "ffffffff/0")  # no call learned its topic's name
    scene.watching.look()
    assert name_logs(scene.history, {ID: LOG[0]}) == 1
    assert {led.log for led in scene.history.leaders.values()} == {LOG, METADATA}


def test_a_file_is_read_on_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = FileTail(path)
    assert list(tail.lines()) == []
    path.write_bytes(b"one\ntw")
    assert list(tail.lines()) == ["one"]
    with path.open("ab") as file:
        file.write(b"o\nthree\n")
    assert list(tail.lines()) == ["two", "three"]


@pytest.mark.parametrize("line", ["", "Traceback", "{", "[1]", '{"event": '])
def test_other_lines_are_no_events(line: str) -> None:
    assert event_of(line) is None


@pytest.mark.parametrize(("group", "log"), [
    ("metadata", METADATA), (GROUP, (f"?#{ID[:8]}", 1)), ("", None), ("x", None), ("x/y", None),
])  # fmt: skip
def test_groups_are_named_as_lines_name_them(group: str, log: tuple[str, int] | None) -> None:
    assert log_of(group) == log
