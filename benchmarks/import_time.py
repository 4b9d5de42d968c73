"""How long `from tinymq import Client` takes: the median of fresh processes, compared with Python itself and pyarrow.

    python -m benchmarks.import_time [PYTHON]

PYTHON is the interpreter of an environment with the wheel, so that bytecode is cached as after an installation by pip.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time

ROUNDS = 20
PROGRAMS = ("pass", "import pyarrow", "from tinymq import Client", "import grpc.aio")


def measure(python: str, program: str) -> tuple[float, float]:
    """Return (milliseconds, milliseconds of processor time), the medians over ROUNDS fresh processes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    walls, cpus = [], []
    for _ in range(ROUNDS):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([python, "-I", "-c", program], check=True, env=environment)
        walls.append(1000 * (time.perf_counter() - started))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return statistics.median(walls), statistics.median(cpus)


def main() -> None:
    """Print one line for each program."""
    python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    for program in PROGRAMS:
        subprocess.run([python, "-I", "-c", program], check=True)  # may write bytecode
        wall_ms, cpu_ms = measure(python, program)
        print(f"{program:26} {wall_ms:5.0f} ms, {cpu_ms:4.0f} ms of a core")


if __name__ == "__main__":
    main()
