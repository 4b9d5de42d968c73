"""The output of `tinymq cluster recover`: groups without a quorum, and the data that a recovery loses. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinymq.base.quantity import named, quantity
from tinymq.cli.common.output import print_table, say

if TYPE_CHECKING:
    from tinymq.raft.rules.quorum_loss import ReplicaReport
    from tinymq.rpc.operator_calls.cluster_recovery import Survey, SurveyedGroup

METADATA = "(metadata)"


def describe(survey: Survey) -> dict[str, Any]:
    """Return every group that cannot continue by itself, as one JSON document."""
    from tinymq.raft.rules.quorum_loss import Healthy

    return {
        "cluster_id": survey.cluster_id.hex(),
        "unreachable": dict(survey.unreachable),
        "unformed": {str(b): reply.reason for b, reply in survey.brokers.items() if not reply.cluster_id},
        "well": sum(isinstance(surveyed.verdict, Healthy) for surveyed in survey.groups),
        "groups": [_group(surveyed) for surveyed in survey.groups if not isinstance(surveyed.verdict, Healthy)],
    }


def _group(surveyed: SurveyedGroup) -> dict[str, Any]:
    from tinymq.raft.rules.quorum_loss import QuorumLost

    verdict = surveyed.verdict
    best = (
        verdict.survivor
        if isinstance(verdict, QuorumLost)
        else max(surveyed.reports, key=lambda r: r.position, default=None)
    )
    return {
        "topic": surveyed.topic or METADATA,
        "partition": surveyed.group.partition,
        "recoverable": isinstance(verdict, QuorumLost),
        "brokers": {str(broker_id): _condition(broker_id, surveyed, best) for broker_id in surveyed.members},
        "survivor": best.broker_id if best is not None else None,
        "last_term": best.last_term if best is not None else None,
        "last_index": best.last_index if best is not None else None,
        "high_watermark": best.high_watermark if best is not None else None,
        "accepted_as_lost": _loss(surveyed, verdict.survivor) if isinstance(verdict, QuorumLost) else "",
        "why_not": "" if isinstance(verdict, QuorumLost) else getattr(verdict, "why", ""),
    }


def _condition(broker_id: int, surveyed: SurveyedGroup, best: ReplicaReport | None) -> str:
    """Return the condition of the replica that CONFIG lists on this broker."""
    report = next((r for r in surveyed.reports if r.broker_id == broker_id), None)
    if report is None or best is None:
        return "missing"
    if not report.healthy:
        return f"damaged: {report.reason}"
    if best.newest.has(report.replica):
        return "listed"
    return f"not listed: {report.reason}" if report.reason else "not listed"


def _loss(surveyed: SurveyedGroup, survivor: ReplicaReport) -> str:
    others = [b for b in surveyed.members if _condition(b, surveyed, survivor) != "listed"]
    lost = named("broker", others)
    if survivor.last_index <= 1:
        return f"everything: none of the records that {lost} held is left"
    return f"records that only {lost} had synced: those acknowledged after entry {survivor.last_index}"


def show(document: dict[str, Any]) -> None:
    """Print the document of `describe` as a table."""
    for address, reason in document["unreachable"].items():
        say(f"unreachable: {address}: {reason}")
    for broker_id, reason in document["unformed"].items():
        say(f"broker {broker_id} belongs to no cluster: {reason}")
    groups = document["groups"]
    well = document["well"]
    say(f"cluster {document['cluster_id']}: {quantity(well, 'group')} well, {len(groups)} not")
    if not groups:
        return
    print_table(
        ["topic", "partition", "brokers", "survivor", "term", "index", "high watermark", "accepted as lost"],
        [
            (
                g["topic"],
                g["partition"],
                "; ".join(f"{b} {condition}" for b, condition in g["brokers"].items()),
                g["survivor"] if g["recoverable"] else "-",
                g["last_term"],
                g["last_index"],
                g["high_watermark"],
                g["accepted_as_lost"] or f"cannot recover: {g['why_not']}",
            )
            for g in groups
        ],
    )
