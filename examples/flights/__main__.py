"""`python -m examples.flights`: run the job, end with 0, 1 (something differs) or 130 (interrupted)."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

from rich.console import Console

from examples.flights.job import Job
from examples.flights.source import DataMissing
from tinymq import TinymqError
from tinymq.cli.common.exits import Exit, explain

FOLDER = Path(".tinymq/flights")


def main() -> int:
    """Run it. Ctrl-C, SIGTERM and a closed terminal stop the brokers, too."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    console = Console()
    try:
        return Exit.OK if Job(FOLDER, console).run() else Exit.FAILED
    except KeyboardInterrupt:
        console.print("no broker is left running")
        return Exit.INTERRUPTED
    except (TinymqError, DataMissing) as error:
        explain(error)
        return Exit.FAILED


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Once is enough: a second Ctrl-C must not cut short the stopping of the brokers.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    sys.stderr.write("\ninterrupted: stopping the brokers\n")
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
