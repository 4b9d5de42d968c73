"""tinymq as the system under test: its clients, its log lines, its data directories."""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from tinymq.client import Client
from tinymq.client.facade.core.client_core import ClientCore
from tinymq_chaos.checkers import Checker
from tinymq_chaos.history import History, topic_key
from tinymq_chaos.real.cluster.cluster import Cluster
from tinymq_chaos.real.processes.health import Status
from tinymq_chaos.real.processes.threads import in_thread
from tinymq_chaos.real.product.callers import GrpcCaller
from tinymq_chaos.real.product.counters import counted
from tinymq_chaos.real.product.leader_log import LeaderLog, name_logs
from tinymq_chaos.real.product.replica_logs import ReplicaStatus, StoppedLogs, reported_replicas
from tinymq_chaos.real.system import verdict
from tinymq_chaos.real.system.system import CollectedReplicas
from tinymq_chaos.real.system.verdict import Slack
from tinymq_chaos.workloads import WORKLOADS
from tinymq_chaos.workloads.clients.threaded_client import ThreadedClient
from tinymq_chaos.workloads.context import Workload

RUN = (
    "idempotent", "plain", "lone", "batches", "hasty", "cursors", "takers", "rush", "queues", "counted",
    "members", "workers", "keyed", "scheduled", "transfers", "processors", "results", "halves", "churn", "recreated",
    "partitions", "metadata",
)  # fmt: skip
"""The workloads that run by default.

Others bound what a topic keeps, or have weaker durability: only a simulator knows the moments that decide what those
may lose (verdict.py).
"""

THREADED = 0.5  # this share of the clients is synchronous
ANSWER_S = 10.0  # for a broker's report on its replicas; a busy broker needs more than one attempt
POLL_S = 0.1


def threaded_client(servers: str, **settings: Any) -> ThreadedClient:
    """Return a synchronous client. Its random source is left out, because `Client` takes none."""
    rng = settings.pop("rng", None)
    return ThreadedClient(Client(servers, **settings), partial(ClientCore, servers, rng=rng, **settings), in_thread)


class ProductSystem:
    """A cluster that is formed and serves. The caller closes the cluster."""

    CAN_HAVE = frozenset({"disks", "faketime"})

    def __init__(self, cluster: Cluster, has: frozenset[str] = frozenset()) -> None:
        self.target = cluster
        self.has = has
        self.workloads: Mapping[str, Workload] = {name: {**WORKLOADS, "counted": counted}[name] for name in RUN}
        self._watching: LeaderLog | None = None

    def client(self, **settings: Any) -> Any:
        """Return an asynchronous or a synchronous client, as its random source draws."""
        if settings["rng"].random() < THREADED:
            return threaded_client(self.target.servers, **settings)
        return self.target.client(**settings)

    def caller(self, rng: random.Random) -> GrpcCaller:
        return GrpcCaller(self.target.servers.split(","), rng)

    def checkers(self, slack: Slack) -> Sequence[Checker]:
        return verdict.checkers(slack)

    def watch(self, history: History, hurt: Collection[int]) -> None:
        if self._watching is None:
            self._watching = LeaderLog(self.target, history)
        self._watching.look(hurt)

    def collect(self, history: History, hurt: Collection[int]) -> CollectedReplicas:
        pages = self._pages()
        silent = [f"broker {n} does not report on its replicas, so they are not judged" for n in self.target.brokers
                  if n not in pages]  # fmt: skip
        statuses = [each for n, page in pages.items() for each in reported_replicas(n, page)]
        with ThreadPoolExecutor(len(self.target.brokers)) as pool:
            list(pool.map(self._stop, self.target.brokers))
        self.watch(history, hurt)
        unnamed = name_logs(history, dict(_topics(history)) | {s.topic_id: s.log[0] for s in statuses})
        notes = [f"{unnamed} terms of topics without a known name are left out"] if unnamed else []
        return CollectedReplicas(notes + self._read(history, hurt, statuses), silent)

    def _pages(self) -> dict[int, Status]:
        """Return the /status page of each broker that has one.

        A broker with a candidate is asked again: a leadership that moves home makes one for a moment.
        """
        until_s, found, moving = time.monotonic() + ANSWER_S, dict[int, Status](), set[int]()
        while True:
            asked = [n for n in self.target.brokers if n not in found or n in moving]
            found |= {n: page for n in asked if (page := self.target.status(n)) is not None}
            missing = [n for n in asked if n not in found and self.target.running(n)]
            moving = {n for n, page in found.items() if any(r["role"] == "candidate" for r in page["replicas"])}
            if not (missing or moving) or time.monotonic() > until_s:
                return dict(sorted(found.items()))
            time.sleep(POLL_S)

    def _stop(self, broker: int) -> None:
        if self.target.running(broker):
            self.target.stop(broker)

    def _read(self, history: History, hurt: Collection[int], statuses: Sequence[ReplicaStatus]) -> list[str]:
        folders, notes = StoppedLogs(), []
        for each in statuses:
            replica, problem = folders.replica(each, self.target.data(each.broker))
            if problem and each.broker in hurt:
                notes.append(
                    f"{each.log[0]}/{each.log[1]} of broker {each.broker} is damaged, as a fault left it: {problem}"
                )
                continue
            if problem:
                history.damaged(each.log, each.broker, problem)
            history.replicas.append(replica)
        return notes


def _topics(history: History) -> Iterator[tuple[str, str]]:
    """Return every topic that any call names or learned: (id, TOPIC)."""
    for call in history.calls:
        key = call.args.get("topic")
        if key is not None:
            yield key.partition("#")[2], key
        if call.kind in ("create_topic", "get_topic") and call.result is not None:
            yield call.result, topic_key(call.args["name"], bytes.fromhex(call.result))
        elif call.kind == "list_topics" and call.result is not None:
            for name, topic_id in call.result.items():
                yield topic_id, topic_key(name, bytes.fromhex(topic_id))
