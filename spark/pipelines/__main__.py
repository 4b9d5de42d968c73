"""`python -m pipelines`, which is `make pipeline`: three brokers, 336,776 flights through Spark, compared with pandas,
and a plot. It ends with 0, 1 (something differs) or 130 (interrupted)."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from rich.console import Console

from examples.flights.source import DataMissing
from pipelines.job import Job
from pipelines.refused import Refused
from pipelines.submitting import SubmitFailed
from tinymq.base.errors import TinymqError
from tinymq.cli.common.exits import Exit, explain

FOLDER = Path(".tinymq/pipeline")


def main() -> int:
    """Run it. Ctrl-C, SIGTERM and a closed terminal stop Spark and the brokers, too."""
    argparse.ArgumentParser(
        prog="python -m pipelines",
        description=__doc__,
        epilog="No arguments; its programs have some: spark/pipelines/README.md.",
    ).parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    console = Console()
    try:
        return Exit.OK if Job(FOLDER, console).run() else Exit.FAILED
    except KeyboardInterrupt:
        console.print("neither Spark nor a broker is left running")
        return Exit.INTERRUPTED
    except (TinymqError, DataMissing, Refused, SubmitFailed) as error:
        explain(error)
        return Exit.FAILED


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Once is enough: a second Ctrl-C must not cut short the stopping of Spark and the brokers.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    sys.stderr.write("\ninterrupted: stopping Spark and the brokers\n")
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
