"""`python -m tests.fuzz`: damaged inputs and random runs, for a given time.

    python -m tests.fuzz --seconds 600              all targets and state machines in turn, with a fresh seed
    python -m tests.fuzz arrow peer --seconds 60    the targets with these prefixes; an unknown prefix is an error
    python -m tests.fuzz arrow.produce --case 5:17  one case again, in this process
    python -m tests.fuzz --quick                    the cases of the quick tier: a fixed seed

Each target runs in a process of its own with a bound on its memory. A finding is printed with the command that
reproduces it, and the exit code is 1. If the time was too short for some targets, the last line names them.
"""

from __future__ import annotations

import argparse
import difflib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import lives, seeded
from tests.fuzz.driver import CaseFile, Finding, Loaded, Tally, Target, be_quiet, limit_memory, sweep, until
from tests.fuzz.targets import ALL, named

SLICE_S = 10.0
QUICK_SEED = 1
KNOWN = [*ALL, *lives.ALL, *seeded.ALL]


def main() -> int:
    options = _parse()
    for name in options.names:
        if not any(known.startswith(name) for known in KNOWN):
            print(_unknown(name), file=sys.stderr)
            return 2
    if options.case:
        seed, number = map(int, options.case.split(":"))
        be_quiet()
        if options.names[0] in seeded.ALL:
            return seeded.once(options.names[0], seed, number)
        (target,) = named(options.names)
        return _here(lambda: sweep(Loaded(target), seed, iter([number])), target.name)
    if options.here:
        limit_memory()
        be_quiet()
        return _child(options)
    return _all(options)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Damage inputs, and see what happens.")
    parser.add_argument("names", nargs="*", help="beginnings of names; all without any")
    parser.add_argument("--seconds", type=float, default=600.0, help="altogether")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--case", help="SEED:NUMBER of one target")
    parser.add_argument("--quick", action="store_true", help="a fixed number of cases from a fixed seed")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)  # where the child notes its case
    return parser.parse_args()


def _unknown(name: str) -> str:
    """The nearest name has the most similar prefix of the same length."""
    begun = {known: known[: len(name)] for known in KNOWN}
    close = difflib.get_close_matches(name, set(begun.values()), n=1)
    if near := [known for known, beginning in begun.items() if beginning in close]:
        return f"no name begins with {name}; the nearest: {', '.join(near)}"
    rooms = dict.fromkeys(known.partition(".")[0] for known in KNOWN)
    return f"no name begins with {name}; names begin with {', '.join(rooms)}"


def _here(run: object, name: str) -> int:
    assert callable(run)
    try:
        print(f"{name:24} {run()}", flush=True)
    except Finding as finding:
        print(f"FOUND {finding}", flush=True)
        return 1
    return 0


def _child(options: argparse.Namespace) -> int:
    """One process: the named targets, or one state machine."""
    note = CaseFile(options.here).note
    failed = 0
    for name in options.names:
        if name in lives.ALL:
            failed |= lives.run(name, options.seed, options.seconds)
            continue
        if name in seeded.ALL:
            failed |= seeded.run(name, options.seed, options.seconds)
            continue
        target = ALL[name]
        print(f"{name} begins", file=sys.stderr, flush=True)
        failed |= _here(lambda target=target: _swept(target, options, note), name)
    return failed


def _swept(target: Target, options: argparse.Namespace, note: object) -> Tally:
    assert callable(note)
    numbers = iter(range(target.cases)) if options.quick else until(options.seconds)
    return sweep(Loaded(target), options.seed, numbers, note)


def _all(options: argparse.Namespace) -> int:
    seed = QUICK_SEED if options.quick else secrets.randbelow(1 << 31) if options.seed is None else options.seed
    targets = [target.name for target in named(options.names)]
    machines = [
        name for name in (*lives.ALL, *seeded.ALL) if not options.names or any(map(name.startswith, options.names))
    ]
    names = targets if options.quick else targets + machines
    if not names:
        print("state machines have no quick tier: leave out --quick", file=sys.stderr)
        return 2
    if options.quick:
        return _process(names, ["--quick", "--seed", str(seed)])
    end = time.monotonic() + options.seconds
    slice_s = min(SLICE_S, max(1.0, options.seconds / len(names)))
    failed = turn = 0
    left_out = list(names)
    while time.monotonic() < end:
        print(f"-- turn {turn}, seed {seed + turn}, {end - time.monotonic():.0f} s left", flush=True)
        for name in names:
            if (left := end - time.monotonic()) > 0:
                left_out = [other for other in left_out if other != name]
                seconds = max(0.1, min(slice_s, left))  # which is at least one case
                failed |= _process([name], ["--seconds", f"{seconds:.1f}", "--seed", str(seed + turn)])
        turn += 1
    if left_out:
        print(f"NOT REACHED within {options.seconds:g} s: {', '.join(left_out)}", flush=True)
    return failed


def _process(names: list[str], arguments: list[str]) -> int:
    """Run these targets in another process, and report how it ended."""
    with tempfile.TemporaryDirectory(prefix="tinymq-fuzz-") as folder:
        case = Path(folder) / "case"
        command = [sys.executable, "-m", "tests.fuzz", *names, *arguments, "--here", str(case)]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        child = subprocess.run(command, check=False, env=environment, stderr=subprocess.PIPE, text=True)
        if child.returncode in (0, 1):
            said = [line for line in child.stderr.splitlines() if not line.endswith(" begins")]
            if child.returncode and said:  # no finding: the fuzzer itself has failed
                print("\n".join(said)[-3000:], flush=True)
            return child.returncode
        begun = [line.removesuffix(" begins") for line in child.stderr.splitlines() if line.endswith(" begins")]
        seed = arguments[arguments.index("--seed") + 1]
        print(f"FOUND the process ended with {child.returncode}\n{child.stderr[-3000:]}")
        print(f"again: python -m tests.fuzz {(begun or names)[-1]} --case {seed}:{CaseFile.read(case)}", flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
