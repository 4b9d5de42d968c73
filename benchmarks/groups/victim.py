"""A worker in a process of its own, which takes some jobs, settles none, and waits to be killed."""

from __future__ import annotations

import argparse
import json
import sys
import time

from tinymq import Client

SETTLE_S = 0.5  # until what it takes is leased, and what it has begun is known to the leaders


def main() -> None:
    parser = argparse.ArgumentParser(description="The worker that benchmarks.groups.failures kills.")
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--jobs", type=int, required=True)
    args = parser.parse_args()
    with Client(args.servers) as client, client.worker(args.topic, group=args.group) as worker:
        jobs = [next(worker) for _ in range(args.jobs)]
        time.sleep(SETTLE_S)
        print(json.dumps([(job.partition, job.offset) for job in jobs]), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
