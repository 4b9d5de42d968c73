"""The state of the cluster by the brokers' own reports, not through proxies, and what is missing in it, in words.

The requests are here, and the pure judgement of the answers. A status is a broker's /status page.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc

from tinymq.base.config import parse_address
from tinymq.metrics.watched import METADATA
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.tinymq_pb2_grpc import BrokerStub

ASK_S_MAX = 1.0
ANSWERING = ("unformed", "running")  # states of a broker that has started
FOLLOWS = ("leader", "follower", "observer")

Status = dict[str, Any]
Statuses = Mapping[int, Status | None]  # by broker; None: no answer
Placed = Mapping[tuple[str, int], Sequence[int]]  # brokers by topic and partition


def ask(address: str, within_s: float = ASK_S_MAX) -> Status | None:
    """Return a broker's /status page; None if there is no answer."""
    connection = http.client.HTTPConnection(*parse_address(address), timeout=within_s)
    try:
        connection.request("GET", "/status")
        status = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return status if isinstance(status, dict) and "state" in status else None  # a busy server answers with other words


def placed(address: str, within_s: float = ASK_S_MAX) -> Placed | None:
    """Return where every replica has to be, as the broker at `address` knows it; None: it does not tell."""
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            reply = BrokerStub(channel).Metadata(pb.MetadataRequest(all=True), timeout=within_s)
        except grpc.RpcError:
            return None
    if reply.HasField("error"):
        return None
    return {(topic.name, p.partition): tuple(p.replicas) for topic in reply.topics for p in topic.partitions}


def leader(statuses: Statuses, topic: str, partition: int) -> int | None:
    """Return the leader of the newest term for which any broker names one."""
    replicas = [r for r in _replicas(statuses, topic, partition).values() if r.get("leader")]
    return int(max(replicas, key=lambda r: int(r["term"]))["leader"]) if replicas else None


def wrong(before: Statuses, after: Statuses, placed: Placed | None, down: Mapping[int, str]) -> Iterator[str]:
    """Return what is missing, in words, from two looks at the cluster; empty if all is well.

    `down`: brokers without a process, and why. In the second look, a follower has to have what its leader had committed
    in the first.
    """
    for broker, status in after.items():
        if broker in down:
            yield f"broker {broker} is down ({down[broker]})"
        elif status is None:
            yield f"broker {broker} does not answer"
        elif status["state"] != "running":
            yield f"broker {broker} is {status['state']}" + (f" ({status['reason']})" if status["reason"] else "")
        else:
            yield from _alone(broker, status, after)
    if all(status is None for status in after.values()):
        return
    if placed is None:
        yield "no broker says where replicas are"
    where = {(r["topic"], r["partition"]): () for s in after.values() if s for r in s["replicas"]} | dict(placed or {})
    for (topic, partition), brokers in sorted(where.items()):
        yield from _replicas_wrong(before, after, topic, partition, brokers or _voters(after, topic, partition))


def _alone(broker: int, status: Status, statuses: Statuses) -> Iterator[str]:
    """Return what keeps a running broker from the others."""
    if not status["metadata_leader"]:
        yield f"broker {broker} knows no leader of the metadata"
    known = [peer["broker"] for peer in status["peers"]]
    unheard = [str(p["broker"]) for p in status["peers"] if not p["alive"] and statuses.get(p["broker"]) is not None]
    unheard += [str(other) for other in statuses if other not in (*known, broker)]
    if unheard:
        yield f"broker {broker} does not hear {', '.join(unheard)}"


def _replicas_wrong(
    before: Statuses, after: Statuses, topic: str, partition: int, brokers: Sequence[int]
) -> Iterator[str]:
    """Return what is wrong with one partition. Brokers without an answer are reported elsewhere."""
    name, found = f"{topic}/{partition}", _replicas(after, topic, partition)
    leading = leader(after, topic, partition)
    if leading is None:
        yield f"{name} has no leader"
    first = _replicas(before, topic, partition).get(leading or 0, {})
    for broker in brokers:
        replica = found.get(broker)
        if replica is None:
            if after.get(broker) is not None:
                yield f"{name} on broker {broker} is missing"
        elif replica["role"] not in FOLLOWS:
            yield f"{name} on broker {broker} is {replica['role']}" + (
                f" ({replica['reason']})" if replica["reason"] else ""
            )
        elif leading is not None and replica["leader"] != leading:
            yield f"{name} on broker {broker} does not follow broker {leading}"
        elif replica["durable_index"] < first.get("commit_index", 0):
            behind = first["commit_index"] - replica["durable_index"]
            yield f"{name} on broker {broker} is {behind} entries behind broker {leading}"


def _replicas(statuses: Statuses, topic: str, partition: int) -> dict[int, dict[str, Any]]:
    """Return the replicas of one partition, by broker."""
    return {
        broker: replica
        for broker, status in statuses.items()
        if status is not None
        for replica in status["replicas"]
        if (replica["topic"], replica["partition"]) == (topic, partition)
    }


def _voters(statuses: Statuses, topic: str, partition: int) -> Sequence[int]:
    """Return the voters of a group without a topic, the metadata group: all brokers."""
    return tuple(statuses) if topic == METADATA else tuple(_replicas(statuses, topic, partition))
