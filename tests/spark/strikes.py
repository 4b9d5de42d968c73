"""Brokers that are killed between two steps of a micro-batch: which one, when, and at whose word.

The micro-batch with the number n of a query meets `STRIKES[n]`. The processes of Spark and of the brokers agree through
files in one folder:

    armed-N     a broker has to die at the step of strike N, which happens within brokers
    struck-N    strike N is taken: nobody else may take it
    broker-B    the process id of broker B
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

from tinymq.dev.process import start_time

LEADER, COORDINATOR = "leader", "coordinator"

OPENED = "opened"  # a task has its set, and has sent nothing
HALF = "half"  # a part of its rows is on its way
STAGED = "staged"  # all tasks are done, and the driver has not asked for the commit
COUNTED = "counted"  # a leader has said what it holds, and the coordinator has not decided
DECIDED = "decided"  # the decision is replicated, and no partition was told
PUBLISHED = "published"  # a partition shows the rows, and the coordinator has not noted it
COMMITTED = "committed"  # the driver has its answer, and Spark's log of commits has no entry

IN_BROKERS = (COUNTED, DECIDED, PUBLISHED)


class Strike(NamedTuple):
    """One kill."""

    step: str
    victim: str


STRIKES = tuple(
    Strike(step, victim)
    for step in (OPENED, HALF, STAGED, COUNTED, DECIDED, PUBLISHED, COMMITTED)
    for victim in (LEADER, COORDINATOR)
)


def strike_of(batch: int) -> Strike | None:
    """The strike at a micro-batch; None: it is left alone."""
    return STRIKES[batch] if batch < len(STRIKES) else None


class StrikeFolder:
    """The files of the processes that take part."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note_broker(self, broker: int, pid: int) -> None:
        """A broker was started."""
        new = self._path / f"broker-{broker}.new"
        new.write_text(str(pid))
        new.rename(self._path / f"broker-{broker}")

    def arm(self, batch: int) -> None:
        """Let a broker take the strike of a micro-batch, when it comes to the step."""
        if not (self._path / f"struck-{batch}").exists():
            (self._path / f"armed-{batch}").touch()

    def kill(self, batch: int, broker: int) -> bool:
        """Kill a broker, by the strike of a micro-batch. False: it is taken already."""
        try:
            os.close(os.open(self._path / f"struck-{batch}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        os.kill(self._pid(broker), signal.SIGKILL)
        return True

    def runs(self, broker: int) -> bool:
        """Whether the broker runs: the metadata name a leader that has died for a moment."""
        return start_time(self._pid(broker)) is not None

    def reach(self, step: str, victim: str) -> None:
        """In a broker, which is the `victim` of this moment: die here, if a strike says so."""
        for armed in self._path.glob("armed-*"):
            number = int(armed.name.partition("-")[2])
            if STRIKES[number] != (step, victim):
                continue
            try:
                armed.rename(self._path / f"struck-{number}")
            except FileNotFoundError:
                continue  # another broker takes it
            os.kill(os.getpid(), signal.SIGKILL)

    def _pid(self, broker: int) -> int:
        return int((self._path / f"broker-{broker}").read_text())

    @property
    def taken(self) -> set[int]:
        """The numbers of the strikes that were taken."""
        return {int(path.name.partition("-")[2]) for path in self._path.glob("struck-*")}
