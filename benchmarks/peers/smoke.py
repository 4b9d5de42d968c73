"""`make bench-smoke`: every system starts, and runs each of its workloads briefly. Figures mean nothing here.

python -m benchmarks.peers.smoke --systems nats kafka
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.peers.contract import WORKLOADS
from benchmarks.peers.processes import end_on_sigterm
from benchmarks.peers.stage import Stage
from benchmarks.peers.systems import SYSTEMS

RECORDS = 5_000
FEW = 200  # one by one
RATE = 200.0
SIZE = 1024
KINDS = ("", "-lone", "-passage", "-tx", "-transact", "-flushed", "-copy")  # of topics


def arguments(workload: str, topic: str) -> dict[str, object]:
    """The arguments of a brief round. Readers read what `produce` wrote to the same topic."""
    return {
        "produce": {"topic": topic, "records": RECORDS, "size": SIZE},
        "lone": {"topic": f"{topic}-lone", "records": FEW, "size": SIZE},
        "offer": {"topic": f"{topic}-lone", "records": FEW, "size": SIZE, "rate": RATE},
        "read": {"topic": topic, "records": RECORDS},
        "group_read": {"topic": topic, "records": RECORDS, "group": "stream"},
        "work": {"topic": topic, "records": RECORDS, "group": "queue"},
        "passage": {"topic": f"{topic}-passage", "records": FEW, "size": SIZE, "rate": RATE, "group": "passage"},
        "transactions": {"topic": f"{topic}-tx", "partitions": 2, "transactions": 20, "records": 10, "size": SIZE},
        "transact": {"topic": f"{topic}-transact", "records": RECORDS, "size": SIZE, "batch": RECORDS // 5},
        "flushed": {"topic": f"{topic}-flushed", "records": RECORDS, "size": SIZE, "batch": RECORDS // 5},
        "tables": {"topic": f"{topic}-flushed", "records": RECORDS},
        "process": {"source": topic, "target": f"{topic}-copy", "records": RECORDS, "batch": RECORDS // 5},
    }[workload]


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-smoke", description=__doc__)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    names = parser.parse_args().systems
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="tinymq-smoke-") as folder, Stage(Path(folder), names) as stage:
        for name in names:
            for kind in KINDS:
                stage.make(name, f"t{kind}", partitions=2)
            for workload in WORKLOADS:
                if SYSTEMS[name].has(workload):
                    found = stage.run(name, workload, **arguments(workload, "t"))
                    print(
                        f"{name:9} {workload:10} {found.measured.rate:10,.0f}/s, processor time per record: "
                        f"client {found.client_cpu_us:,.1f} µs, servers {found.servers_cpu_us:,.1f} µs"
                    )


if __name__ == "__main__":
    main()
