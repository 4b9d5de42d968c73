"""`tinymq dev`: a local cluster of plain processes, for experiments and for tests of whole programs."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from tinymq.base.errors import InvalidRequest
from tinymq.base.quantity import quantity
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import flush, print_json, print_line, print_table, say
from tinymq.client.common import contexts
from tinymq.client.common.contexts import Context
from tinymq.dev import cause, dev_cluster, dev_directory

HELP = """
Example: tinymq dev up -n 3

Example: tinymq dev kill 2; tinymq dev start 2

Example: tinymq dev down --purge
"""

app = App(
    name="dev",
    help="Run a local cluster of plain processes: up, add, status, logs, kill, stop, start, down.",
    help_epilogue=HELP,
)

Dir = Annotated[Path, Parameter(name=["--dir", "-D"], help="The cluster's directory.")]
Found = Annotated[
    Path | None,
    Parameter(name=["--dir", "-D"], help="The cluster's directory. [default: .tinymq/dev, or the context's]"),
]
Number = Annotated[int, Parameter(help="The broker's number, from 1.")]

FOLLOW_S = 0.2


@app.command
def up(
    *,
    brokers: Annotated[int | None, Parameter(name=["--brokers", "-n"])] = None,
    port: Annotated[int, Parameter(name=["--port", "-p"])] = dev_directory.FIRST_PORT,
    secure: Annotated[bool, Parameter(negative=())] = False,
    dir: Dir = dev_directory.DEFAULT,
    output: Output = "table",
) -> None:
    """Start a cluster, or its stopped brokers, and wait until it serves.

    Parameters
    ----------
    brokers
        How many brokers a new cluster has: 1, 3 or 5; `tinymq dev add` adds more. [default: 3]
    port
        The client port of the first broker of a new cluster. The other brokers get the next ports. Each broker's peer
        port is 100 higher than its client port, and its metrics port 200 higher. If one of them is taken, or if the
        port is 0, all ports are any free ones. A cluster keeps its ports.
    secure
        A new cluster requires TLS on all ports and checks its callers. Its certificates, and the token of the user
        admin, are in its directory; later commands find them.
    """
    if not 0 <= port < 1 << 16:
        raise InvalidRequest(f"--port {port} is not a port", hint="write 0 (any port) to 65535")
    folder = dev_cluster.up(dir, brokers, say, port, secure=secure)
    name = contexts.name_of(dir)
    context = Context(folder.servers, str(dir.absolute()), folder.token, folder.authority)
    contexts.save(contexts.load().with_one(name, context, use=True))
    say(f"clients connect to {folder.servers}")
    say(f"commands find it from everywhere; programs by Client(context={name!r}), or after")
    say(f"export TINYMQ_SERVERS={folder.servers}")
    if folder.secure:
        say(f"export TINYMQ_TLS_CA={folder.authority} TINYMQ_TOKEN=$(cat {folder.token_file.absolute()})")
    _print(dir, output)


@app.command
def add(
    *,
    brokers: Annotated[int, Parameter(name=["--brokers", "-n"], help="How many brokers to add.")] = 1,
    dir: Found = None,
    output: Output = "table",
) -> None:
    """Add brokers to a running cluster, and wait until they serve.

    They join as with `tinymq broker --join`, and have no vote on the cluster's metadata. New topics use them.
    """
    dir = _found(dir)
    if brokers < 1:
        raise InvalidRequest(f"-n {brokers}: the number of brokers must be 1 or more", hint="tinymq dev add -n 1")
    for _ in range(brokers):
        broker = dev_cluster.add(dir, say)
        say(f"broker {broker.id} serves on {broker.address}")
    _print(dir, output)


@app.command
def status(*, dir: Found = None, output: Output = "table") -> None:
    """Show the brokers, their processes and their states."""
    dir = _found(dir)
    _print(dir, output)


@app.command
def logs(
    number: Annotated[int | None, Parameter(help="Only this broker.")] = None,
    /,
    *,
    lines: Annotated[int, Parameter(name=["--lines", "-n"], help="How many lines from the end.")] = 50,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], help="Print new lines until interrupted.")] = False,
    dir: Found = None,
) -> None:
    """Print the brokers' logs. Each line is a JSON object already, so there is no -o."""
    dir = _found(dir)
    folder = dev_directory.load(dir)
    numbers = [broker.id for broker in folder.brokers] if number is None else [folder.broker(number).id]
    positions = {}
    for each in numbers:
        log = folder.log(each)
        positions[each] = log.stat().st_size if log.exists() else 0
        for line in cause.tail(log, lines):
            print_line(line if number is not None else f"{each}: {line}")
    while follow:
        time.sleep(FOLLOW_S)
        for each in numbers:
            more, positions[each] = cause.lines_from(folder.log(each), positions[each])
            for line in more:
                print_line(line if number is not None else f"{each}: {line}")
        flush()


@app.command
def kill(number: Number, /, *, dir: Found = None, output: Output = "table") -> None:
    """Kill a broker, as kill -9 does."""
    dir = _found(dir)
    dev_cluster.kill(dir, number)
    say(f"broker {number} killed")
    _print_one(dir, number, output)


@app.command
def stop(number: Number, /, *, dir: Found = None, output: Output = "table") -> None:
    """Stop a broker in order: it transfers its leaderships first."""
    dir = _found(dir)
    dev_cluster.stop(dir, number)
    say(f"broker {number} stopped")
    _print_one(dir, number, output)


@app.command
def start(number: Number, /, *, dir: Found = None, output: Output = "table") -> None:
    """Start a broker that was killed or stopped, and wait until it serves."""
    dir = _found(dir)
    broker = dev_cluster.start(dir, number)
    dev_cluster.wait_ready(dir, number)
    say(f"broker {number} serves on {broker.address}")
    _print_one(dir, number, output)


@app.command
def down(
    *,
    purge: Annotated[bool, Parameter(help="Remove the cluster's directory with all its data.")] = False,
    dir: Found = None,
    output: Output = "table",
) -> None:
    """Stop the cluster. Its data stays, unless --purge is given."""
    dir = dir or dev_directory.DEFAULT if purge else _found(dir)  # nothing is removed that was not named
    stopped = dev_cluster.down(dir, purge=purge)
    if purge:
        _forget(dir)
    say(f"{quantity(len(stopped), 'broker')} stopped" + (f", {dir} removed" if purge else ""))
    if output == "json":
        print_json({"stopped": [broker.id for broker in stopped], "removed": str(dir) if purge else None})


def _forget(dir: Path) -> None:
    """Remove the context of a local cluster that no longer exists."""
    known = contexts.load()
    for name, context in known.by_name.items():
        if context.directory == str(dir.absolute()):
            contexts.save(known.without(name))
            return


def _found(dir: Path | None) -> Path:
    """Return the directory of the cluster that a command means.

    Without --dir that is the cluster of the current directory, else the local cluster of the context in use.
    """
    if dir is not None:
        return dir
    if not dev_directory.exists(dev_directory.DEFAULT):
        known = contexts.load()
        context = known.by_name.get(known.current)
        if context is not None and context.directory:
            return Path(context.directory)
    return dev_directory.DEFAULT


def _print(dir: Path, output: Output) -> None:
    states = dev_cluster.status(dir)
    if output == "json":
        print_json({"brokers": [asdict(state) for state in states]})
    else:
        rows = [(s.id, s.pid, s.address, s.metrics, s.state) for s in states]
        print_table(["broker", "pid", "address", "metrics", "state"], rows)


def _print_one(dir: Path, number: int, output: Output) -> None:
    """Print the state of one broker as JSON. The table format prints a message instead."""
    if output == "json":
        print_json(next(asdict(state) for state in dev_cluster.status(dir) if state.id == number))
