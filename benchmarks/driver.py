"""One process per measured system, which runs a round on request: clients do not share an interpreter. This module
requests rounds over pipes; the system's own module defines them.

    line in: {"workload": NAME, "count": N}          line out: a Round
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType

from benchmarks.measure import Round

Workloads = Mapping[str, Callable[[int], Awaitable[Round]]]


class Driver:
    """The process of one system. Leaving ends it."""

    def __init__(self, module: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        """`env`: the whole environment of the process; this one's by default."""
        command = [sys.executable, "-m", module, "--serve", *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self._module = module

    def run(self, workload: str, count: int) -> Round:
        """Run one round. Raises RuntimeError when the process has ended."""
        return Round.parse(self.ask(workload, count=count))

    def ask(self, workload: str, **arguments: object) -> str:
        """Run a workload with these arguments, and return the line of its answer. Raises RuntimeError as `run`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"workload": workload, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"{self._module} ended during {workload}; what it said is above")
        return line

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


async def serve(workloads: Workloads) -> None:
    """The process's side: run what standard input names, until it ends."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        result = await workloads[asked["workload"]](asked["count"])
        print(result.dump(), flush=True)
