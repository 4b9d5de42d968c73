"""`tinymq cluster`: form a cluster, show its state, move leaders, and recover from the loss of a quorum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tinymq.base.errors import InvalidRequest
from tinymq.base.quantity import named, quantity
from tinymq.cli.common.exits import Exit
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_line, print_table, say
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions
from tinymq.cli.verbs import feature_level, recover
from tinymq.cli.verbs.access.new_token import check_free, hand_out
from tinymq.dev import ask, dev_directory

if TYPE_CHECKING:
    from tinymq.client import ClusterStatus, ReplicaStatus

ADMINISTRATOR = "admin"  # the user whom `init` makes
MISSING = "missing"  # the role of a replica that its broker does not report
TAKES_PART = ("leader", "follower", "observer")

HELP = """
Example: tinymq cluster init --secret-file secret

Example: tinymq cluster status

Example: tinymq cluster transfer-leader orders 0 --to 2
"""

app = App(
    name="cluster",
    help="Form a cluster, show its state, move leaders, and recover from the loss of a quorum.",
    help_epilogue=HELP,
)
app.command(feature_level.app)


@app.command
def init(
    *,
    secret_file: Annotated[Path, Parameter(help="The file with the secret that all brokers share.")],
    admin_out: Annotated[
        Path | None, Parameter(help="Make the user admin, an administrator, and write its token to this new file.")
    ] = None,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Form one cluster of the brokers named by -s: all the voters, all of them empty.

    Repeat the command to complete a formation that was interrupted.
    """
    from tinymq.app.settings import read_secret

    check_free(admin_out)
    addresses, secret, tls = servers.addresses(), read_secret(secret_file), servers.tls()
    formed = ask.form(addresses, secret, servers.left_s, tls)
    brokers = named("broker", formed.brokers)
    if formed.newly:
        say(f"cluster {formed.cluster_id.hex()} formed of {brokers}")
    else:
        say(f"cluster {formed.cluster_id.hex()} was formed before, of {brokers}")
    if admin_out is not None:
        token = ask.administrator(addresses, secret, ADMINISTRATOR, servers.left_s, tls)
        hand_out(token, admin_out, ADMINISTRATOR, "table")
        say(f"check callers from now on: tinymq auth enable --token-file {admin_out}")
    if output == "json":
        print_json({"cluster_id": formed.cluster_id.hex(), "brokers": formed.brokers, "newly_formed": formed.newly})


@app.command(name="recover")
def recover_(
    *,
    accept_loss: Annotated[
        bool, Parameter(negative=(), help="Recover, and lose the data shown. Without it, only show the groups.")
    ] = False,
    secret_file: Annotated[
        Path | None, Parameter(help="The file with the secret that all brokers share. [default: the local cluster's]")
    ] = None,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> int:
    """Recover groups that have lost their quorum for good, from the best replica that is left.

    Records that only the lost replicas held are lost. The exit code is 1 as long as such groups are left.
    """
    secret = _secret(secret_file, servers)
    addresses, tls = servers.addresses(), servers.tls()
    survey = ask.survey(addresses, secret, servers.left_s, tls)
    if accept_loss:
        survey = ask.recover(survey, addresses, secret, servers.left_s, say, tls)
    document = recover.describe(survey)
    if output == "json":
        print_json(document)
    else:
        recover.show(document)
    recoverable = [group for group in document["groups"] if group["recoverable"]]
    if recoverable and not accept_loss:
        say(f"--accept-loss would recover {quantity(len(recoverable), 'group')}, and lose the records shown above")
    return Exit.FAILED if document["groups"] else Exit.OK


def _secret(secret_file: Path | None, servers: ServerOptions) -> bytes:
    from tinymq.app.settings import read_secret

    if secret_file is not None:
        return read_secret(secret_file)
    if servers.servers is None:
        return dev_directory.load(dev_directory.DEFAULT).secret
    raise InvalidRequest("the secret of this cluster is required", hint="give --secret-file")


@app.command(name="transfer-leader")
def transfer_leader(
    topic: str,
    partition: int,
    /,
    *,
    to: Annotated[int | None, Parameter(help="The new leader. [default: the preferred broker, else another]")] = None,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Transfer the leadership of a partition to another broker, and wait until that broker leads.

    A leadership that you moved stays where it is until the preferred broker restarts. To move it back earlier, name the
    preferred broker with --to: it is the first replica that `tinymq topic describe` shows.
    """
    with servers.connect() as mq:
        leader = mq.admin.transfer_leader(topic, partition, to, timeout=servers.left_s)
    say(f"{topic}/{partition} is led by broker {leader}")
    if output == "json":
        print_json({"topic": topic, "partition": partition, "leader": leader})


@app.command
def status(
    *,
    topic: Annotated[
        list[str] | None, Parameter(name=["--topic", "-t"], help="Only the replicas of this topic; may be repeated.")
    ] = None,
    problems: Annotated[
        bool, Parameter(negative="", help="Only the brokers and the replicas that are not as they should be.")
    ] = False,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> int:
    """Show every broker and every replica, as the brokers report them. Exits with 1 unless all are present and healthy.

    The first line says whether all is well. The options choose what is listed below it; the exit code is that of the
    whole cluster. A broker is missing if it votes on the metadata or has replicas, but is not registered: it died some
    time ago.
    """
    with servers.connect() as mq:
        document = describe(mq.admin.cluster_status())
    summary = summarize(document)
    if topic is not None:
        document["replicas"] = [row for row in document["replicas"] if row["topic"] in topic]
    if problems:
        document["replicas"] = [row for row in document["replicas"] if row["role"] not in TAKES_PART]
        document["brokers"] = [row for row in document["brokers"] if not _is_well(row)]
    if output == "json":
        print_json(document)
    else:
        _print(document, summary)
    return 0 if document["healthy"] else 1


def summarize(document: dict[str, Any]) -> str:
    """Return one line that says whether all is well, and if not, what is wrong. Pure."""
    brokers, replicas = document["brokers"], document["replicas"]
    topics = {row["topic"] for row in replicas} - {recover.METADATA}
    have = f"{quantity(len(brokers), 'broker')}, {quantity(len(topics), 'topic')}, {quantity(len(replicas), 'replica')}"
    if document["healthy"]:
        return f"all is well: {have}"
    wrong = [f"broker {row['id']} is {row['state']}" for row in brokers if not _is_well(row)]
    roles = Counter(row["role"] for row in replicas if row["role"] not in TAKES_PART)
    wrong += [f"{quantity(count, 'replica')} {role}" for role, count in sorted(roles.items())]
    if not document["metadata_leader"]:
        wrong.append("the metadata has no leader")
    return f"not well: {', '.join(wrong) or 'no broker knows all topics'}; of {have}"


def _is_well(broker: dict[str, Any]) -> bool:
    return bool(broker["state"] == "running" and broker["registered"])


def describe(status: ClusterStatus) -> dict[str, Any]:
    """Return the state of a cluster as one JSON document. Pure."""
    brokers = [
        {
            "id": broker.broker_id,
            "address": broker.address or None,
            "rack": broker.rack,
            "registered": broker.alive,
            "state": broker.state,
            "version": broker.version,
            "reason": broker.reason,
            "metrics": broker.metrics_address or None,
            "votes": broker.votes,
            "last_heard_s": broker.heard_s,
        }
        for broker in status.brokers
    ]
    reported = [_replica(broker.broker_id, replica) for broker in status.brokers for replica in broker.replicas]
    replicas = [_informed(replica, reported) for replica in reported] + _missing(status)
    replicas.sort(key=lambda replica: (replica["topic"], replica["partition"], replica["broker"]))
    complete = bool(brokers) and status.topics is not None  # else a missing replica would not be noticed
    well = complete and all(broker.state == "running" and broker.alive for broker in status.brokers)
    return {
        "cluster_id": status.cluster_id.hex(),
        "metadata_leader": status.metadata_leader or None,
        "healthy": well and all(replica["role"] in TAKES_PART for replica in replicas),
        "brokers": brokers,
        "replicas": replicas,
    }


def _replica(broker: int, replica: ReplicaStatus) -> dict[str, Any]:
    values = asdict(replica)
    topic, partition = values.pop("topic") or recover.METADATA, values.pop("partition")
    values["chain_crc"] = f"{replica.chain_crc:08x}"
    values["topic_id"] = replica.topic_id.hex() if replica.topic_id and replica.topic else None
    return {"topic": topic, "partition": partition, "broker": broker, **values, "leader": replica.leader or None}


def _informed(replica: dict[str, Any], reported: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a row whose reason takes the reports of the other replicas into account.

    A replica without a leader knows only its own view; another replica may report who leads.
    """
    from tinymq.raft.rules.explanation import explain_led

    if not replica["reason"] or replica["leader"] is not None:
        return replica
    others = [
        other
        for other in reported
        if (other["topic"], other["partition"]) == (replica["topic"], replica["partition"])
        and other["role"] in TAKES_PART
        and other["leader"] not in (None, replica["broker"])
    ]
    if not others:
        return replica
    leader = max(others, key=lambda other: other["term"])["leader"]
    return {**replica, "reason": explain_led(replica["reason"], leader)}


def _missing(status: ClusterStatus) -> list[dict[str, Any]]:
    """Return a row for every replica that is assigned to a broker but not reported by it."""
    rows = []
    for broker in status.brokers:
        answers = broker.state not in (MISSING, "unreachable")
        why = f"broker {broker.broker_id} " + ("has not opened it yet" if answers else f"is {broker.state}")
        held = {(replica.topic, replica.partition) for replica in broker.replicas}
        if broker.votes and not answers:
            rows.append(_absent("", 0, broker.broker_id, why))
        for topic in status.topics or ():
            names = (
                topic.name,
                topic.topic_id.hex(),
            )  # a broker that does not know the topic's name yet reports the id
            rows += [
                _absent(topic.name, placed.partition, broker.broker_id, why)
                for placed in topic.partitions
                if broker.broker_id in placed.replicas and not any((name, placed.partition) in held for name in names)
            ]
    return rows


def _absent(topic: str, partition: int, broker: int, why: str) -> dict[str, Any]:
    from tinymq.client import ReplicaStatus

    nothing: dict[str, Any] = dict.fromkeys(("term", "leader", "last_index", "durable_index", "commit_index"), 0)
    nothing |= dict.fromkeys(("high_watermark", "log_start", "chain_crc", "bytes"), 0)
    return _replica(broker, ReplicaStatus(topic=topic, partition=partition, role=MISSING, reason=why, **nothing))


def _print(document: dict[str, Any], summary: str) -> None:
    leader = document["metadata_leader"]
    print_line(summary)
    print_line()
    say(f"cluster {document['cluster_id']}, metadata led by {f'broker {leader}' if leader else 'no broker'}")
    print_table(
        ["broker", "address", "metrics", "state", "reason"],
        [(b["id"], b["address"], b["metrics"], b["state"], b["reason"]) for b in document["brokers"]],
    )
    for b in document["brokers"]:
        if b["state"] == MISSING:
            say(f"broker {b['id']} is missing: {b['reason']}")
    print_line()
    names = ["topic", "partition", "broker", "role", "term", "durable", "commit", "high watermark", "MB", "reason"]
    keys = ["topic", "partition", "broker", "role", "term", "durable_index", "commit_index", "high_watermark"]
    rows: Sequence[dict[str, Any]] = document["replicas"]
    print_table(names, [(*(r[key] for key in keys), round(r["bytes"] / 1e6, 1), r["reason"]) for r in rows])
