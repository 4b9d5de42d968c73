"""The process of one client: runs the workloads that standard input names, one line each.

line in: {"workload": NAME, ...arguments}          line out: a Measured
"""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks.peers.systems import SYSTEMS


def main() -> None:
    parser = argparse.ArgumentParser(description="The process of one client; started by benchmarks.driver.")
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--serve", action="store_true", help="run what standard input names, line by line")
    args = parser.parse_args()
    client = SYSTEMS[args.system].client(args.servers)
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            done = getattr(client, asked.pop("workload"))(**asked)
            print(done.dump() if done is not None else "{}", flush=True)
    finally:
        client.close()


if __name__ == "__main__":
    main()
