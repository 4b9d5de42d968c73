"""The processes of a session, as Linux lists them in /proc."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class SessionProcess(NamedTuple):
    """One process."""

    pid: int
    group: int
    state: str  # one letter: R, S, D, T (stopped), Z (ended, and not reaped), ...
    name: str


def processes(session: int) -> list[SessionProcess]:
    """The processes of a session, those that have ended and were not reaped among them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            front, _, rest = path.read_text().rpartition(")")  # the name may contain anything
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        pid, _, name = front.partition(" (")
        state, _, group, its_session = rest.split()[:4]
        if int(its_session) == session:
            found.append(SessionProcess(int(pid), int(group), state, name))
    return found
