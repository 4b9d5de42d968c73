"""Runs a target on many damaged inputs: each within a time, all within a bound of memory, every one repeatable.

A case is (target, seed, number). What it raises but TinymqError is a finding: it is printed with the fewest steps
that show it, and with what runs it again. The number of the case is kept in a file, so that one that ends the process
can be named by whoever started it.
"""

from __future__ import annotations

import logging
import mmap
import random
import resource
import signal
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import structlog

from tests.fuzz.mutate import HEAD_BYTES, Step, mutate, random_steps
from tinymq.base.errors import TinymqError

CASE_S_MAX = 5.0
MEASURE_EVERY = 50  # cases; measuring costs several times the case
ADDRESS_SPACE_BYTES = 2 << 30  # beyond what the process has when it starts


@dataclass(frozen=True, slots=True)
class Target:
    """One way in. `parse` returns a value or raises TinymqError; anything else is a finding.

    `reseals` put checksums right again; each is tried in turn with no reseal at all. `sealed` parses what passed one:
    promises that hold for disks need not hold there. Python's allocations per case stay below `bytes_max`.
    """

    name: str
    seeds: Callable[[], Sequence[bytes]]
    parse: Callable[[bytes], object]
    reseals: tuple[Callable[[bytes], bytes], ...] = ()
    sealed: Callable[[bytes], object] | None = None
    bytes_max: int = 1 << 20
    head_bytes: int = HEAD_BYTES
    alone: bool = False  # may end the process: only in one of its own
    cases: int = 400  # in the quick tier


@dataclass(frozen=True, slots=True)
class Case:
    """One damaged input."""

    which: int
    reseal: int  # 0: none
    steps: tuple[Step, ...]


class TooSlow(BaseException):
    """A case went on for longer than CASE_S_MAX. Not an Exception: nothing may handle it and go on."""


class Finding(AssertionError):
    """A case that raised what no input may raise; the message says how to run it again."""


@dataclass(slots=True)
class Tally:
    """What came of the cases of one target."""

    cases: int = 0
    values: int = 0
    seconds: float = 0.0
    refusals: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        rate = self.cases / self.seconds if self.seconds else 0.0
        refused = ", ".join(f"{code} {count}" for code, count in sorted(self.refusals.items())) or "none"
        return f"{self.cases:8d} cases {rate:8.0f}/s  {self.values} values; refused: {refused}"


class Loaded:
    """A target with its inputs made once."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.seeds = list(target.seeds())

    def draw(self, seed: int, number: int) -> Case:
        rng = random.Random(f"{self.target.name}/{seed}/{number}")
        which = rng.randrange(len(self.seeds))
        reseal = rng.randrange(len(self.target.reseals) + 1)
        return Case(which, reseal, tuple(random_steps(rng)))

    def input_of(self, case: Case) -> bytes:
        data = mutate(self.seeds[case.which % len(self.seeds)], case.steps, self.seeds, self.target.head_bytes)
        reseal = case.reseal % (len(self.target.reseals) + 1)
        return self.target.reseals[reseal - 1](data) if reseal else data

    def run(self, case: Case, data: bytes | None = None) -> str:
        """ "" for a value, else the code of the error. Raises what is a finding."""
        target = self.target
        data = self.input_of(case) if data is None else data
        sealed = case.reseal % (len(target.reseals) + 1) and target.sealed
        try:
            (sealed or target.parse)(data)
        except TinymqError as error:
            return error.code
        return ""

    def measured(self, case: Case) -> str:
        """As `run`, and what Python allocates meanwhile is within the target's bound."""
        data = self.input_of(case)
        with allocating(self.target.bytes_max, f"an input of {len(data)}"):
            return self.run(case, data)


@contextmanager
def allocating(bytes_max: int, what: str) -> Iterator[None]:
    """What Python allocates in the block, in any thread, is within the bound; `what` it is for, for who reads that it
    is not. An error that leaves the block says more, and is left alone."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= bytes_max, f"{peak} bytes allocated for {what}"


def shrink(loaded: Loaded, case: Case, run: Callable[[Case], object], kind: type[BaseException]) -> Case:
    """The case with the fewest steps of its own that still raises `kind`."""
    steps = list(case.steps)
    for at in range(len(steps) - 1, -1, -1):
        fewer = Case(case.which, case.reseal, tuple(steps[:at] + steps[at + 1 :]))
        if not fewer.steps:
            break
        try:
            run(fewer)
        except kind:
            del steps[at]
        except (Exception, TooSlow):
            continue
    return Case(case.which, case.reseal, tuple(steps))


def sweep(loaded: Loaded, seed: int, numbers: Iterator[int], note: Callable[[int], None] = lambda _: None) -> Tally:
    """Run cases until `numbers` ends. Raises Finding at the first that is one."""
    tally = Tally()
    began = time.monotonic()
    with _watch() as again:
        for number in numbers:
            note(number)
            case = loaded.draw(seed, number)
            run = loaded.measured if number % MEASURE_EVERY == 0 else loaded.run
            again()
            try:
                code = run(case)
            except (Exception, TooSlow) as error:
                raise Finding(_explained(loaded, case, run, error, f"{seed}:{number}", again)) from error
            tally.cases += 1
            if code:
                tally.refusals[code] = tally.refusals.get(code, 0) + 1
            else:
                tally.values += 1
    tally.seconds = time.monotonic() - began
    return tally


def _explained(
    loaded: Loaded,
    case: Case,
    run: Callable[[Case], object],
    error: BaseException,
    which: str,
    again: Callable[[], None],
) -> str:
    """`again` gives each attempt at a smaller case its own time."""

    def timed(smaller: Case) -> object:
        again()
        return run(smaller)

    small = shrink(loaded, case, timed, type(error))
    data = loaded.input_of(small)
    trace = "".join(traceback.format_exception(error)[-12:])
    return (
        f"{loaded.target.name} case {which}: {error!r}\n{trace}"
        f"again: python -m tests.fuzz {loaded.target.name} --case {which}\n"
        f"smaller: {small}\ninput ({len(data)} bytes): {data[:2000].hex()}"
    )


@contextmanager
def _watch() -> Iterator[Callable[[], None]]:
    """Raise TooSlow when CASE_S_MAX pass without a call of what it gives."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"still running after {CASE_S_MAX} s")

    before = signal.signal(signal.SIGALRM, late)
    try:
        yield lambda: signal.setitimer(signal.ITIMER_REAL, CASE_S_MAX) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def until(seconds: float, first: int = 0) -> Iterator[int]:
    """Numbers of cases for so long."""
    end = time.monotonic() + seconds
    number = first
    while time.monotonic() < end:
        yield number
        number += 1


def be_quiet() -> None:
    """Nothing is logged from now on: refusals by the thousand would be most of the work."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)


def limit_memory(bytes_more: int = ADDRESS_SPACE_BYTES) -> None:
    """From now on, this process gets at most so much more: an allocation on trust is a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + bytes_more, hard))


@contextmanager
def limited_memory() -> Iterator[None]:
    """As `limit_memory`, where the process goes on: a missing bound is a MemoryError, and not its end."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit_memory()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class CaseFile:
    """The number of the case that runs, in a file that outlives the process."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    def note(self, number: int) -> None:
        self._map[:8] = number.to_bytes(8, "little")

    @staticmethod
    def read(path: Path) -> int:
        return int.from_bytes(path.read_bytes(), "little")
