"""Many runs side by side on the machine's cores: progress, totals, and the commands that replay failed runs."""

from __future__ import annotations

import json
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path
from typing import Any

from tinymq_chaos.sim.campaign.plan import Plan
from tinymq_chaos.sim.campaign.reduce import reduced
from tinymq_chaos.sim.campaign.run import run

PROGRESS_S = 5.0
LOOK_S = 0.5  # how often the campaign checks for an interrupt, at least
RUNS_PER_PROCESS = 100  # then a new process replaces it, which bounds the memory
FAILURES_MAX = 20  # failed runs, after which the campaign ends


def _leave_interrupts() -> None:
    """Ignore SIGINT: Ctrl-C reaches every process of a terminal, and the campaign ends its own processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_one(plan: Plan, reduce_s: float) -> tuple[str, dict[str, Any]]:
    """Run one plan in a process of the pool; return the command that replays it, and its result.

    A failure is reduced for up to `reduce_s` CPU seconds. The result then has the `shortest` command.
    """
    result = run(plan)
    values = result.values()
    if result.anomalies and reduce_s > 0:
        values["shortest"] = reduced(result, reduce_s).plan.command
    return plan.command, values


class Campaign:
    """Runs `plans`, for `seconds` of real time, or all of them if `seconds` is None."""

    def __init__(
        self,
        plans: Iterable[Plan],
        seconds: float | None,
        processes: int,
        path: str | None,
        progress_s: float = PROGRESS_S,
        reduce_s: float = 0.0,
    ) -> None:
        """`path`: a file for a line of JSON per run. `reduce_s`: CPU seconds to reduce each failure; 0: leave it."""
        self._reduce_s = reduce_s
        self._plans = iter(plans)
        self._seconds = seconds
        self._processes = processes
        self._path = Path(path) if path else None
        self._progress_s = progress_s
        self._interrupted = False
        self._began_s = self._told_s = time.monotonic()
        self._runs: Counter[int] = Counter()  # by number of brokers
        self._virtual_s = self._cpu_s = 0.0
        self._three_s = (0.0, 0.0)  # (virtual, CPU) of runs with three brokers
        self._faults: Counter[str] = Counter()
        self._happened: Counter[str] = Counter()
        self._records = self._elections = 0
        self._calls: Counter[str] = Counter()
        self._seeds: list[int] = []
        self.failures: list[str] = []

    def run(self) -> list[str]:
        """Run to the end; return the commands that replay the failed runs.

        On Ctrl-C, print the totals and raise KeyboardInterrupt. The threads of the pool may then wait for ever: leave
        by os._exit.
        """
        pool = ProcessPoolExecutor(
            self._processes, initializer=_leave_interrupts, max_tasks_per_child=RUNS_PER_PROCESS
        )  # fmt: skip
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            self._run_in(pool)
        except (KeyboardInterrupt, BrokenProcessPool) as ended:
            if not self._interrupted:
                raise
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would interrupt the end
            print("interrupted", flush=True)
            for child in multiprocessing.active_children():
                child.kill()
            raise KeyboardInterrupt from ended
        else:
            pool.shutdown()
            signal.signal(signal.SIGINT, before)
        finally:
            self._tell()
            for command in self.failures:
                print(f"  {command}", flush=True)
        return self.failures

    def _interrupt(self, *_: object) -> None:
        self._interrupted = True
        raise KeyboardInterrupt

    def _run_in(self, pool: ProcessPoolExecutor) -> None:
        pending: set[Future[tuple[str, dict[str, Any]]]] = {
            pool.submit(run_one, p, self._reduce_s) for p in self._next(2)
        }
        while pending:
            done, pending = wait(pending, timeout=LOOK_S, return_when=FIRST_COMPLETED)
            if self._interrupted:  # Python drops an exception that a signal raises in a destructor or a weak reference
                raise KeyboardInterrupt
            for future in done:
                self._take(*future.result())
                pending |= {pool.submit(run_one, p, self._reduce_s) for p in self._next(1)}

    def _next(self, per_process: int) -> Iterator[Plan]:
        late = self._seconds is not None and time.monotonic() - self._began_s >= self._seconds
        if late or len(self.failures) >= FAILURES_MAX:
            return iter(())
        return islice(self._plans, per_process if per_process == 1 else self._processes * per_process)

    def _take(self, command: str, values: dict[str, Any]) -> None:
        self._seeds.append(values["seed"])
        self._runs[values["brokers"]] += 1
        self._virtual_s += values["virtual_s"]
        self._cpu_s += values["real_s"]
        if values["brokers"] == 3:
            self._three_s = (self._three_s[0] + values["virtual_s"], self._three_s[1] + values["real_s"])
        self._faults.update(values["faults"])
        self._happened.update(values["happened"])
        self._calls.update(values["calls"])
        self._records += values["records"]
        self._elections += values["elections"]
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"command": command, **values}) + "\n")
        if values["anomalies"]:
            self.failures.append(command)
            print(f"FAILED  {command}", *values["anomalies"], sep="\n    ", flush=True)
            if values.get("shortest", command) != command:
                print(f"    reduced: {values['shortest']}", flush=True)
        if time.monotonic() - self._told_s >= self._progress_s:
            self._told_s = time.monotonic()
            print(self._line(), flush=True)

    def _line(self) -> str:
        real_s = time.monotonic() - self._began_s
        return (
            f"{real_s:6.0f} s: {sum(self._runs.values())} runs, {self._virtual_s:,.0f} virtual seconds, "
            f"{self._faults.total():,} faults, {self._records:,} records acknowledged, "
            f"{self._virtual_s / real_s:.1f} virtual s per s, {len(self.failures)} failed"
        )

    def _tell(self) -> None:
        if not self._seeds:
            return
        print(self._line())
        virtual_s, cpu_s = self._three_s
        print(
            f"seeds {min(self._seeds)} to {max(self._seeds)}:"
            f" runs by number of brokers {dict(sorted(self._runs.items()))};"
            f" calls {dict(self._calls)}; {self._elections:,} leaders"
        )
        print("faults: " + _counted(self._faults))
        print("crashes and power cuts in the middle of work: " + _counted(self._happened))
        if cpu_s:
            print(f"{virtual_s / cpu_s:.1f} virtual seconds per second of one core, with three brokers under load")


def _counted(some: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(some.items())) or "none"
