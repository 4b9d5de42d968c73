"""A broker's process for the harness: `tinymq broker` as it ships, on a disk that the harness controls, or with
mutants.

    python -m tinymq_chaos.real.cluster.broker --disk broker-1.disk -- --config broker-1.toml
    python -m tinymq_chaos.real.cluster.broker --mutant answers-when-appended -- --config broker-1.toml

`tinymq broker` gets the arguments after `--`, and does everything else: signals, files, logs, exit status. The patches
are in place before the broker is made, and stay until the process ends.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import tinymq.app.broker_app
from tinymq.base.errors import InvalidRequest
from tinymq.cli.common.exits import Exit, explain
from tinymq.cli.main import run
from tinymq.log.files.files import Files, RealFiles
from tinymq_chaos.mutants import MUTANTS, Mutant, Patches, find
from tinymq_chaos.real.disks import disk_control
from tinymq_chaos.real.disks.disks import FaultyDisk

PROG = "python -m tinymq_chaos.real.cluster.broker"
AGAIN = f"see {PROG} --help"
EPILOG = f"""\
examples, from the project's folder, with PYTHONPATH=chaos:

  {PROG} --disk broker-1.disk -- --config .tinymq/dev/broker-1.toml
      broker 1 of a local cluster (tinymq dev up, then tinymq dev kill 1), whose disk does as it is told through the
      socket broker-1.disk: it fails, fills up, grows slow, or loses what was not synced
      (tinymq_chaos/real/disks/disks.py)

  {PROG} --list
      list the mutants and their rules

  {PROG} --mutant answers-when-appended -- --config .tinymq/dev/broker-1.toml
      the same broker as a mutant: it answers before a majority has the batch

  {PROG} --mutant logs-are-not-synced --mutant votes-are-not-synced --disk SOCKET -- --config broker-1.toml
      two rules at once; what is not synced shows in a power cut, which is a kill -9 and then
      tinymq_chaos.real.disks.power_cut.DeadDirectory(DATA_FOLDER).lose(random.Random(SEED))

A rule that a cluster rests on as a whole is out only where every broker is the mutant.
"""


class _Parser(argparse.ArgumentParser):
    """A parser that raises InvalidRequest instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise InvalidRequest(message, hint=AGAIN)


def main(words: Sequence[str]) -> int:
    """Run the broker; return its exit status. 2, without a broker: the command is wrong, or a mutant needs the
    simulator.
    """
    at = words.index("--") if "--" in words else len(words)
    with ExitStack() as stack:
        try:
            options, stray = _parser().parse_known_args(words[:at])
            if options.list:
                print("\n".join(f"{mutant.name:38} {_rule(mutant)}" for mutant in MUTANTS.values()))
                return Exit.OK
            chosen = _chosen(options.mutant, stray, whole=options.disk is not None)
            _apply(chosen, stack)
            if options.disk is not None:
                _obey(options.disk, stack)
        except InvalidRequest as error:
            explain(error)
            return Exit.USAGE
        for mutant in chosen:
            print(f"THIS BROKER IS BROKEN ON PURPOSE: {mutant.name} takes out: {mutant.rule}", file=sys.stderr)
        sys.stderr.flush()
        return run(["broker", *words[at + 1 :]])


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROG,
        usage=f"{PROG} [--disk SOCKET] [--mutant NAME ...] -- [arguments of tinymq broker]",
        description="Run `tinymq broker` on a disk that obeys, or with rules taken out, to see what tests notice. "
        "Never for data.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--disk", type=Path, metavar="SOCKET", help="socket through which tests control the disk")
    parser.add_argument("--mutant", action="append", default=[], metavar="NAME", help="the rule to take out")
    parser.add_argument("--list", action="store_true", help="names and rules, and no broker")
    return parser


def _rule(mutant: Mutant) -> str:
    return f"{mutant.rule} (simulator only: {mutant.needs_simulator})" if mutant.needs_simulator else mutant.rule


def _chosen(names: Sequence[str], stray: Sequence[str], *, whole: bool) -> list[Mutant]:
    """Return the mutants of the command. With `whole` there may be none."""
    if stray:
        raise InvalidRequest(f"{' '.join(stray)}: arguments of the broker belong behind --", hint=AGAIN)
    if not names and not whole:
        raise InvalidRequest("no --mutant and no --disk; a broker that is whole: tinymq broker", hint=AGAIN)
    return _found(names)


def _found(names: Sequence[str]) -> list[Mutant]:
    chosen = [find(name) for name in dict.fromkeys(names)]
    for mutant in chosen:
        if mutant.needs_simulator:
            raise InvalidRequest(f"{mutant.name} is for the simulator only: {mutant.needs_simulator}", hint="")
    return chosen


def check_mutants(names: Sequence[str]) -> None:
    """Raise InvalidRequest unless one broker can have all of these mutants."""
    with ExitStack() as stack:
        _apply(_found(names), stack)


def _apply(chosen: Sequence[Mutant], stack: ExitStack) -> None:
    """Apply the mutants until the stack ends. Raises InvalidRequest if two of them replace the same rule."""
    replaced: dict[tuple[int, str], Mutant] = {}
    for mutant in chosen:
        patches = stack.enter_context(mutant.applied())
        for owner, name, _ in patches.replaced:
            other = replaced.setdefault((id(owner), name), mutant)
            if other is not mutant:
                raise InvalidRequest(f"{other.name} and {mutant.name} both change {name}: one at a time", hint="")


def _obey(path: Path, stack: ExitStack) -> None:
    """Replace the broker's files by a `FaultyDisk` over the real ones. A process makes them once."""

    def files(root: Path) -> Files:
        disk = FaultyDisk(RealFiles(root), root)
        disk_control.serve(disk, path)
        return disk

    patches = Patches()
    stack.callback(patches.undo)
    patches.set(tinymq.app.broker_app, "RealFiles", files)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
