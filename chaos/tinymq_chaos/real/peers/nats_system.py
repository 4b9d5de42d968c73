"""A NATS cluster as the system under test: its clients, its suitable workloads and checkers, its leaders, and the
content of its servers' files at the end.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from tinymq_chaos import workloads
from tinymq_chaos.checkers import Checker
from tinymq_chaos.checkers.records import reads, replicas, writes
from tinymq_chaos.history import FinalReplica, History, Log, Outcome
from tinymq_chaos.real.peers import nats_files as files
from tinymq_chaos.real.peers import nats_monitor as monitor
from tinymq_chaos.real.peers.nats import NatsCluster
from tinymq_chaos.real.peers.nats_client import NatsClient
from tinymq_chaos.real.peers.nats_config import SYNCS
from tinymq_chaos.real.peers.nats_faults import LOOP_DISKS
from tinymq_chaos.real.peers.nats_names import offset_of, stream_of
from tinymq_chaos.real.system.system import CollectedReplicas
from tinymq_chaos.real.system.verdict import Slack
from tinymq_chaos.workloads.context import Workload

SERVES_S = 30.0  # from its start
_LOADS = {"idempotent": workloads.idempotent, "plain": workloads.plain, "lone": workloads.lone}
SUITED = tuple(_LOADS)
CHECKERS: tuple[Checker, ...] = (
    writes.lost_writes,
    writes.aborted_reads,
    writes.changed_records,
    writes.duplicates,
    reads.shown_records,
    reads.shown_ends,
    reads.steady_readers,
    reads.unseen_writes,
    replicas.gaps,
    replicas.replicas_differ,
    replicas.damaged_entries,
    replicas.two_leaders,
    replicas.not_healed,
)
NOT_JUDGED: Mapping[str, str] = {
    "reordered": "JetStream promises an order only to clients that wait for each answer; these producers have many "
    "sends in flight, and retry",
    "nonmonotonic_sends": "as reordered",
    "unanswered": "the adapter itself ends every call by its deadline",
    "no_progress, slow_writes, restless, lingering_leaders": "promises of speed that only tinymq makes; the "
    "trial measures the pauses of writes",
    "early_answers, early_reads, high_watermarks": "they need the time of every commit",
    "innocent_damage": "the adapter does not read the servers' reports of damage",
    "metadata, cursors, retention, weak, given": "their workloads do not run here",
}
"""The checks that do not apply here, and why."""


class NatsSystem:
    """A `SystemUnderTest` (system.py) over a cluster that serves."""

    def __init__(self, cluster: NatsCluster) -> None:
        self.cluster = cluster

    @property
    def target(self) -> NatsCluster:
        return self.cluster

    @property
    def has(self) -> frozenset[str]:
        return frozenset({LOOP_DISKS}) if self.cluster.powered else frozenset()

    @property
    def workloads(self) -> Mapping[str, Workload]:
        return {name: partial(workload, beside=()) for name, workload in _LOADS.items()}

    def checkers(self, slack: Slack) -> Sequence[Checker]:
        """Return the checkers. No checker needs slack."""
        return CHECKERS

    def client(self, *, rng: random.Random | None = None, **settings: float) -> NatsClient:
        """Return a client. `rng` is for clients that accept one; nats-py has its own."""
        return NatsClient(self.cluster.servers, **settings)

    def caller(self, rng: random.Random) -> NoReturn:
        raise AssertionError("workloads that call brokers without a client speak tinymq's protocol: none is suited")

    def watch(self, history: History, hurt: Collection[int]) -> None:
        """Report the leaders and their terms: the server reads both under one lock."""
        logs = {stream_of(name_of(log), log[1]): log for log in logs_in(history)}
        for broker in self.cluster.brokers:
            port = self.cluster.listens[broker].monitor
            if not self.cluster.running(broker):
                history.leads_no_more(broker)
                continue
            groups = {group: log for group, stream in monitor.groups(port).items() if (log := logs.get(stream))}
            for group, (state, term) in monitor.states(port).items():
                log = groups.get(group)
                if log is not None and state == "LEADER":
                    history.led(log, term, broker)
                elif log is not None:
                    history.leads_no_more(broker, log)

    def collect(self, history: History, hurt: Collection[int]) -> CollectedReplicas:
        """Stop the servers and read their files. Each server reported its commit before that."""
        problems: list[str] = []
        logs = logs_in(history)
        streams = {
            broker: monitor.streams(self.cluster.listens[broker].monitor) or {} for broker in self.cluster.brokers
        }
        leaders = {log: self.cluster.leader(name_of(log), log[1]) for log in logs}
        for broker in self.cluster.brokers:
            if self.cluster.running(broker):
                self.cluster.stop(broker)
        for log in sorted(logs):
            stream = stream_of(name_of(log), log[1])
            for broker in self.cluster.brokers:
                state = streams[broker].get(stream, {}).get("state")
                role = "leader" if leaders[log] == broker else "follower" if state is not None else "gone"
                entries = files.stored(self.cluster.data(broker), stream)
                last = int(state["last_seq"]) if state is not None else 0
                start = offset_of(max(1, int(state["first_seq"]))) if state is not None else 0
                if (entries[-1].index if entries else 0) != last:
                    held = entries[-1].index if entries else 0
                    problems.append(f"server {broker} said that {stream} ends at {last}; its files end at {held}")
                history.replicas.append(
                    FinalReplica(
                        log, broker, role, high_watermark=last, commit_index=last, log_start=start, entries=entries
                    )
                )
        return CollectedReplicas(problems)


def serving(folder: Path, sync: str = SYNCS[1], loop_disks: bool = False) -> NatsSystem:
    """Return three servers that have just begun to serve. Raises RuntimeError if they do not."""
    cluster = NatsCluster(folder, sync=sync, loop_disks=loop_disks)
    try:
        cluster.start(*cluster.brokers)
        until_s, problem = time.monotonic() + SERVES_S, "not asked yet"
        while problem and time.monotonic() < until_s:
            problem = cluster.unhealthy()
            time.sleep(0.05)
        if problem:
            raise RuntimeError(f"{cluster.name} {cluster.version} does not serve within {SERVES_S:g} s: {problem}")
    except BaseException:
        cluster.close()
        raise
    return NatsSystem(cluster)


def logs_in(history: History) -> set[Log]:
    """Return the partitions that were written to."""
    found = {(call.args["topic"], call.args["partition"]) for call in history.of("send")}
    return found | {(c.args["topic"], c.result[0]) for c in history.of("send") if c.outcome is Outcome.OK}


def name_of(log: Log) -> str:
    return log[0].partition("#")[0]
