"""Runs a target on many damaged inputs, with bounds on time and memory; every case is repeatable. A case is (target,
seed, number). An exception other than TinymqError is a finding: it is printed with the fewest steps that show it and
the command that repeats it. A file has the number of the running case, so that the parent process can name a case that
ends the process.
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
ADDRESS_SPACE_BYTES = 2 << 30  # in addition to the process's memory at the start


@dataclass(frozen=True, slots=True)
class Target:
    """One entry point. `parse` returns a value or raises TinymqError; anything else is a finding. `reseals` repair
    checksums; cases alternate between each of them and none. `sealed` parses resealed input, for which the promises
    about disks need not hold. Python's allocations per case stay below `bytes_max`.
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
    """A case ran longer than CASE_S_MAX. Not an Exception, so that no handler swallows it."""


class Finding(AssertionError):
    """A case raised a forbidden exception; the message has the command that repeats it."""


@dataclass(slots=True)
class Tally:
    """The results of the cases of one target."""

    cases: int = 0
    values: int = 0
    seconds: float = 0.0
    refusals: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        rate = self.cases / self.seconds if self.seconds else 0.0
        refused = ", ".join(f"{code} {count}" for code, count in sorted(self.refusals.items())) or "none"
        return f"{self.cases:8d} cases {rate:8.0f}/s  {self.values} values; refused: {refused}"


class Loaded:
    """A target with its inputs, created once."""

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
        """Return "" for a value, or the code of the error. Raises a finding."""
        target = self.target
        data = self.input_of(case) if data is None else data
        sealed = case.reseal % (len(target.reseals) + 1) and target.sealed
        try:
            (sealed or target.parse)(data)
        except TinymqError as error:
            return error.code
        return ""

    def measured(self, case: Case) -> str:
        """Like `run`, and check Python's allocations against the target's bound."""
        data = self.input_of(case)
        with allocating(self.target.bytes_max, f"an input of {len(data)}"):
            return self.run(case, data)


@contextmanager
def allocating(bytes_max: int, what: str) -> Iterator[None]:
    """Check that Python's allocations in the block, in any thread, are within the bound; `what` names the purpose in
    the message. An error that leaves the block says more, and passes through.
    """
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= bytes_max, f"{peak} bytes allocated for {what}"


def shrink(loaded: Loaded, case: Case, run: Callable[[Case], object], kind: type[BaseException]) -> Case:
    """Return the case with the fewest steps that still raises `kind`."""
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
    """Run cases until `numbers` ends. Raises the first Finding."""
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
    """Raise TooSlow when CASE_S_MAX pass without a call of the yielded function."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"still running after {CASE_S_MAX} s")

    before = signal.signal(signal.SIGALRM, late)
    try:
        yield lambda: signal.setitimer(signal.ITIMER_REAL, CASE_S_MAX) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def until(seconds: float, first: int = 0) -> Iterator[int]:
    """Yield numbers of cases for `seconds`."""
    end = time.monotonic() + seconds
    number = first
    while time.monotonic() < end:
        yield number
        number += 1


def be_quiet() -> None:
    """Switch logging off: thousands of refusals would take most of the time."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)


def limit_memory(bytes_more: int = ADDRESS_SPACE_BYTES) -> None:
    """Bound the further memory of this process: an unchecked allocation becomes a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + bytes_more, hard))


@contextmanager
def limited_memory() -> Iterator[None]:
    """Like `limit_memory`, for a process that continues: a missing bound raises MemoryError instead of ending it."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit_memory()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class CaseFile:
    """The number of the running case, in a file that outlives the process."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    def note(self, number: int) -> None:
        self._map[:8] = number.to_bytes(8, "little")

    @staticmethod
    def read(path: Path) -> int:
        return int.from_bytes(path.read_bytes(), "little")
