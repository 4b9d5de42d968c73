"""`tinymq dev`: a local cluster of plain processes, for trying things out and for tests of whole programs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from tinymq.cli import devcluster, devfolder
from tinymq.cli.output import Output, print_json, print_table, say

app = App(name="dev", help="A local cluster of plain processes: up, status, kill, down.")

Dir = Annotated[Path, Parameter(name=["--dir", "-D"], help="The cluster's folder.")]
Number = Annotated[int, Parameter(help="The broker's number, from 1.")]

FOLLOW_S = 0.2


@app.command
def up(
    *,
    brokers: Annotated[int | None, Parameter(name=["--brokers", "-n"])] = None,
    dir: Dir = devfolder.DEFAULT,
    output: Output = "table",
) -> None:
    """Start a cluster, or what is stopped of it, and wait until it serves.

    Parameters
    ----------
    brokers
        How many brokers a new cluster has: 1, 3 or 5. [default: 3]
    """
    devcluster.up(dir, brokers, say)
    _print(dir, output)


@app.command
def status(*, dir: Dir = devfolder.DEFAULT, output: Output = "table") -> None:
    """Show the brokers, their processes and how they are."""
    _print(dir, output)


@app.command
def logs(
    number: Annotated[int | None, Parameter(help="Of this broker alone.")] = None,
    /,
    *,
    lines: Annotated[int, Parameter(name=["--lines", "-n"], help="How many lines from the end.")] = 50,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], help="Go on until interrupted.")] = False,
    dir: Dir = devfolder.DEFAULT,
) -> None:
    """Print what brokers have logged."""
    folder = devfolder.load(dir)
    numbers = [broker.id for broker in folder.brokers] if number is None else [folder.broker(number).id]
    positions = {}
    for each in numbers:
        log = folder.log(each)
        positions[each] = log.stat().st_size if log.exists() else 0
        for line in devcluster.tail(log, lines):
            print(line if number is not None else f"{each}: {line}")
    while follow:
        time.sleep(FOLLOW_S)
        for each in numbers:
            with open(folder.log(each), errors="replace") as file:
                file.seek(positions[each])
                for line in file:
                    sys.stdout.write(line if number is not None else f"{each}: {line}")
                positions[each] = file.tell()
        sys.stdout.flush()


@app.command
def kill(number: Number, /, *, dir: Dir = devfolder.DEFAULT) -> None:
    """End a broker at once, as kill -9 does."""
    devcluster.kill(dir, number)
    say(f"broker {number} killed")


@app.command
def stop(number: Number, /, *, dir: Dir = devfolder.DEFAULT) -> None:
    """Let a broker hand over what it leads, and stop it."""
    devcluster.stop(dir, number)
    say(f"broker {number} stopped")


@app.command
def start(number: Number, /, *, dir: Dir = devfolder.DEFAULT) -> None:
    """Start a broker that was killed or stopped, and wait until it serves."""
    broker = devcluster.start(dir, number)
    devcluster.wait_ready(dir, number)
    say(f"broker {number} serves on {broker.address}")


@app.command
def down(
    *,
    purge: Annotated[bool, Parameter(help="Remove the cluster's folder and all data in it.")] = False,
    dir: Dir = devfolder.DEFAULT,
) -> None:
    """Stop the cluster. Its data stays, unless --purge is given."""
    stopped = devcluster.down(dir, purge=purge)
    say(f"{len(stopped)} brokers stopped" + (f", {dir} removed" if purge else ""))


def _print(dir: Path, output: Output) -> None:
    states = devcluster.status(dir)
    if output == "json":
        print_json(
            {"brokers": [{"id": s.id, "pid": s.pid, "address": s.address, "state": s.state} for s in states]},
        )
    else:
        print_table(["broker", "pid", "address", "state"], [(s.id, s.pid, s.address, s.state) for s in states])
