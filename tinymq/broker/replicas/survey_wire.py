"""Reports and orders of a recovery, as values and on the wire: both ends."""

from __future__ import annotations

from collections.abc import Iterable

from tinymq.base.errors import InvalidRequest
from tinymq.base.types import GroupId, TopicId
from tinymq.proto import tinymq_pb2 as pb
from tinymq.raft import Replica
from tinymq.raft.rules.membership import Membership
from tinymq.raft.rules.quorum_loss import RecoveryOrder, ReplicaReport


def replica_to_wire(replica: Replica) -> pb.ReplicaIdentity:
    return pb.ReplicaIdentity(broker_id=replica.broker_id, incarnation=replica.incarnation, count=replica.count)


def replicas_from_wire(replicas: Iterable[pb.ReplicaIdentity]) -> tuple[Replica, ...]:
    """Raises InvalidRequest."""
    identities = tuple(Replica(r.broker_id, r.incarnation, r.count) for r in replicas)
    if any(len(r.incarnation) != 16 for r in identities) or len({r.broker_id for r in identities}) != len(identities):
        raise InvalidRequest("not the replicas of a group")
    return identities


def group_from_wire(topic_id: bytes, partition: int) -> GroupId:
    """Raises InvalidRequest."""
    if len(topic_id) != 16:
        raise InvalidRequest("a topic id has 16 bytes")
    return GroupId(TopicId(topic_id), partition)


def report_to_wire(report: ReplicaReport) -> pb.SurveyedReplica:
    group = report.applied.group
    return pb.SurveyedReplica(
        topic_id=group.topic_id,
        partition=group.partition,
        identity=replica_to_wire(report.replica),
        healthy=report.healthy,
        leads=report.leads,
        term=report.term,
        last_term=report.last_term,
        last_index=report.last_index,
        high_watermark=report.high_watermark,
        applied_epoch=report.applied.epoch,
        applied=map(replica_to_wire, report.applied.replicas),
        newest_epoch=report.newest.epoch,
        newest=map(replica_to_wire, report.newest.replicas),
        reason=report.reason,
        term_before_take_over=report.before_forced[0],
        index_before_take_over=report.before_forced[1],
        applied_generation=report.applied.recovery_epoch,
        newest_generation=report.newest.recovery_epoch,
        fault_count=report.fault_count,
    )


def report_from_wire(message: pb.SurveyedReplica) -> ReplicaReport:
    """Raises InvalidRequest."""
    group = group_from_wire(message.topic_id, message.partition)
    (replica,) = replicas_from_wire([message.identity])
    return ReplicaReport(
        replica=replica,
        healthy=message.healthy,
        leads=message.leads,
        term=message.term,
        last_term=message.last_term,
        last_index=message.last_index,
        high_watermark=message.high_watermark,
        applied=Membership(
            group, message.applied_epoch, replicas_from_wire(message.applied), message.applied_generation
        ),
        newest=Membership(group, message.newest_epoch, replicas_from_wire(message.newest), message.newest_generation),
        before_forced=(message.term_before_take_over, message.index_before_take_over),
        reason=message.reason,
        fault_count=message.fault_count if message.HasField("fault_count") else None,
    )


def order_to_wire(order: RecoveryOrder) -> pb.TakeOverOrder:
    return pb.TakeOverOrder(
        topic_id=order.group.topic_id,
        partition=order.group.partition,
        term=order.term,
        last_term=order.position[0],
        last_index=order.position[1],
        replicas=map(replica_to_wire, order.replicas),
    )


def order_from_wire(message: pb.TakeOverOrder) -> RecoveryOrder:
    """Raises InvalidRequest."""
    group = group_from_wire(message.topic_id, message.partition)
    return RecoveryOrder(
        group, message.term, (message.last_term, message.last_index), replicas_from_wire(message.replicas)
    )
