"""A run's folder: its history and run.json, as they are. Other modules compute figures from them.

history.jsonl     History.lines()
run.json          an object; every name may be missing
    seed          number
    command       the command that repeats the run's plan
    target        the system under test: "tinymq", "nats"
    versions      {"tinymq": "0.1.0", "python": "3.11.2", ...}
    machine       text, or {"cpus": 2, ...}
    nodes         number of brokers
    anomalies     dataclasses.asdict(Anomaly) of each, or a sentence; without the name, the checkers run again
    interrupted   true: a person ended the run before its time
    judged        false: the run ended before the checkers ran
    not_tested    sentences: the requests that the run did not test
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinymq_chaos import checkers
from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.history import History

HISTORY = "history.jsonl"
RUN = "run.json"


class BadFolder(Exception):
    """The folder does not hold a run. `hint` says what to do."""

    hint = ""

    def __str__(self) -> str:
        return f"{super().__str__()} ({self.hint})"


class NoRun(BadFolder):
    """The folder has no file of a run."""

    hint = "name a folder that make chaos has written"


class DamagedRun(BadFolder):
    """A file of the run cannot be read."""

    hint = "the run was cut short, or the file was changed: run it again"


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that is over."""

    folder: Path
    history: History
    run_json: Mapping[str, Any]
    anomalies: tuple[Anomaly | str, ...]  # a sentence: not found by a checker

    @property
    def name(self) -> str:
        return self.folder.resolve().name


def read_run(folder: Path) -> FinishedRun:
    """Read a run. Raises NoRun, DamagedRun."""
    if not (folder / HISTORY).is_file():
        raise NoRun(f"{folder} is no folder of a run: there is no {HISTORY}")
    history = _history(folder / HISTORY)
    run_json = _object(folder / RUN) if (folder / RUN).is_file() else {}
    if "anomalies" not in run_json:
        return FinishedRun(folder, history, run_json, tuple(checkers.check(history)))
    if not isinstance(run_json["anomalies"], list):
        raise DamagedRun(f"{folder / RUN}: anomalies is not a list")
    return FinishedRun(folder, history, run_json, tuple(_anomaly(folder / RUN, each) for each in run_json["anomalies"]))


def _history(path: Path) -> History:
    number = 0

    def lines(file: Iterable[str]) -> Iterator[str]:
        nonlocal number
        for line in file:
            number += 1
            yield line

    try:
        with path.open(encoding="utf-8") as file:
            return History.read(lines(file))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise DamagedRun(f"{path}, line {number}: {error!r}") from error
    except OSError as error:
        raise DamagedRun(f"{path}: {error}") from error


def _object(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DamagedRun(f"{path}: {error}") from error
    if not isinstance(values, dict):
        raise DamagedRun(f"{path}: no object")
    return values


_LISTS = ("records", "offsets", "processes", "times_s", "brokers")


def _anomaly(path: Path, values: Any) -> Anomaly | str:
    if isinstance(values, str):
        return values
    try:
        log = values.get("log")
        lists = {
            name: tuple(values.get(name, ())) for name in ("records", "offsets", "processes", "times_s", "brokers")
        }
        return Anomaly(
            AnomalyKind(values["kind"]), str(values["what"]), None if log is None else (log[0], log[1]), **lists
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise DamagedRun(f"{path}: no anomaly: {values!r:.200}") from error
