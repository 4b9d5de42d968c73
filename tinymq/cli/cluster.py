"""`tinymq cluster`: forming one, and seeing how it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tinymq.cli import ask
from tinymq.cli.output import Output, print_json, print_table, say
from tinymq.cli.servers import HERE, Where
from tinymq.errors import TinymqError

if TYPE_CHECKING:
    from tinymq.proto import tinymq_pb2 as pb

app = App(name="cluster", help="Form a cluster, and see how it is.")

ASK_S_MAX = 3.0
METADATA = "(metadata)"


@app.command
def init(
    *,
    secret_file: Annotated[Path, Parameter(help="The file with the secret that all brokers share.")],
    where: Where = HERE,
) -> None:
    """Form the brokers named by -s, all voters and all empty, into one cluster. Again: completes what was begun."""
    from tinymq.settings import read_secret

    formed = ask.form(where.addresses().split(","), read_secret(secret_file), where.timeout)
    brokers = ", ".join(map(str, formed.brokers))
    if formed.newly:
        say(f"cluster {formed.cluster_id.hex()} formed of brokers {brokers}")
    else:
        say(f"cluster {formed.cluster_id.hex()} was formed before, of brokers {brokers}")


@app.command
def status(*, where: Where = HERE, output: Output = "table") -> int:
    """Show every broker and every replica, each asked itself. Exit code 1 when one does not answer or is not well."""
    with where.connect() as mq:
        known = {broker.address: broker for broker in mq.admin.brokers()}
    replies = dict(zip(known, ask.status(list(known), min(ASK_S_MAX, where.timeout)), strict=True))
    document = describe(replies, {address: broker.broker_id for address, broker in known.items()})
    if output == "json":
        print_json(document)
    else:
        _print(document)
    return 0 if document["healthy"] else 1


def describe(replies: dict[str, pb.ClusterStatusReply | TinymqError], ids: dict[str, int]) -> dict[str, Any]:
    """All answers as one document. Pure."""
    brokers: list[dict[str, Any]] = []
    replicas: list[dict[str, Any]] = []
    cluster_id, metadata_leader = None, None
    for address, reply in replies.items():
        if isinstance(reply, TinymqError):
            brokers.append({"id": ids[address], "address": address, "state": "unreachable", "reason": reply.message})
            continue
        cluster_id, metadata_leader = reply.cluster_id.hex(), reply.metadata_leader or metadata_leader
        brokers.append({"id": reply.broker_id, "address": address, "state": reply.state, "version": reply.version})
        replicas += [_replica(reply.broker_id, replica) for replica in reply.replicas]
    replicas.sort(key=lambda replica: (replica["topic"], replica["partition"], replica["broker"]))
    well = all(broker["state"] == "running" for broker in brokers)
    return {
        "cluster_id": cluster_id,
        "metadata_leader": metadata_leader,
        "healthy": well and all(replica["role"] in ("leader", "follower") for replica in replicas),
        "brokers": sorted(brokers, key=lambda broker: broker["id"]),
        "replicas": replicas,
    }


def _replica(broker: int, replica: pb.ReplicaStatus) -> dict[str, Any]:
    return {
        "topic": replica.topic or METADATA,
        "partition": replica.partition,
        "broker": broker,
        "role": replica.role,
        "leader": replica.leader or None,
        "term": replica.term,
        "last_index": replica.last_index,
        "durable_index": replica.durable_index,
        "commit_index": replica.commit_index,
        "high_watermark": replica.high_watermark,
        "log_start": replica.log_start,
        "chain_crc": f"{replica.chain_crc:08x}",
        "bytes": replica.bytes,
        "reason": replica.reason,
    }


def _print(document: dict[str, Any]) -> None:
    say(f"cluster {document['cluster_id']}, metadata led by broker {document['metadata_leader']}")
    print_table(
        ["broker", "address", "state", "reason"],
        [(b["id"], b["address"], b["state"], b.get("reason", "")) for b in document["brokers"]],
    )
    print()
    names = ["topic", "partition", "broker", "role", "term", "durable", "commit", "high watermark", "MB", "reason"]
    keys = ["topic", "partition", "broker", "role", "term", "durable_index", "commit_index", "high_watermark"]
    rows: Sequence[dict[str, Any]] = document["replicas"]
    print_table(names, [(*(r[key] for key in keys), round(r["bytes"] / 1e6, 1), r["reason"]) for r in rows])
