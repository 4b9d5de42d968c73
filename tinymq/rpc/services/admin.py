"""service Admin: topics, the state of the cluster, its formation, and its recovery after a loss."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from tinymq.base import topic_config
from tinymq.base.types import METADATA_GROUP, check_scan_id
from tinymq.base.version import VERSION
from tinymq.broker.cluster.formation import Formation
from tinymq.broker.replicas.recovery import Recovery
from tinymq.broker.replicas.survey_wire import order_from_wire, report_to_wire
from tinymq.broker.replicas.transfers import Transfers
from tinymq.broker.serve.broker import Broker
from tinymq.broker.serve.scans import ScanProgress
from tinymq.broker.serve.slices import Slice
from tinymq.format.feature_level import KNOWN_LEVEL
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.proto.bounds import parse
from tinymq.raft import GroupStatus
from tinymq.raft.rules.quorum_loss import RecoveryOrder
from tinymq.rpc.common.access import CLUSTER, LEVEL, TOPIC
from tinymq.rpc.common.broker_state import Serving
from tinymq.rpc.common.call_context import Context
from tinymq.rpc.common.caller import count_made, count_partition, may_describe
from tinymq.rpc.common.lookup import find_queue, find_topic
from tinymq.rpc.common.presence import leaves_zeros_out, require
from tinymq.rpc.common.proof import check_proof, describe_proof, form_proof, survey_proof, take_over_proof
from tinymq.rpc.common.rpc_method import item, unary
from tinymq.rpc.services.broker import DESCRIBED_MAX, brokers_to_wire, partition_to_wire, topic_to_wire

TOPIC_TIMEOUT_S = 10.0  # if the client names no timeout
CALL_TIMEOUT_S_MAX = 600.0
MARGIN_S = 0.2  # reserved for the answer: if it came after the client's deadline, the outcome would be unknown


class StatusSource(Protocol):
    """The facts about the process that its services need: `BrokerApp` (tinymq/app/broker_app.py) implements it."""

    @property
    def address(self) -> str: ...
    @property
    def peer_address(self) -> str: ...
    def replica_statuses(self) -> list[GroupStatus]: ...
    def metadata_leader(self) -> int: ...
    def metadata_voters(self) -> list[int]: ...
    def heard_ages_s(self) -> dict[int, float]: ...
    @property
    def reason(self) -> str: ...


class AdminService(pb_grpc.AdminServicer):
    """service Admin."""

    def __init__(
        self, serving: Serving, formation: Formation, application: StatusSource, recovery: Recovery,
        transfers: Transfers, secret: bytes,
    ) -> None:  # fmt: skip
        self._serving = serving
        self._formation = formation
        self._application = application
        self._recovery = recovery
        self._transfers = transfers
        self._secret = secret

    @unary(operation="create", resource=TOPIC)
    async def CreateTopic(self, request: pb.CreateTopicRequest, context: Context) -> pb.CreateTopicReply:
        broker = self._serving.running()
        await count_made(self._serving, "topic", request.name, request.partitions)
        topic = await broker.create_topic(
            request.name,
            request.partitions,
            None if request.default_factor else request.replication_factor,
            min(_timeout_s(request.timeout_ms), _left_s(context)),
            request.command_id,
            topic_config.make(_settings(request.settings)),
        )
        return pb.CreateTopicReply(topic=topic_to_wire(broker, topic))

    @unary(operation="alter", resource=TOPIC)
    async def AlterTopic(self, request: pb.AlterTopicRequest, context: Context) -> pb.AlterTopicReply:
        broker = self._serving.running()
        settings = _settings(request.settings)
        topic = await broker.alter_topic(request.name, settings, _timeout_s(request.timeout_ms), request.command_id)
        return pb.AlterTopicReply(topic=topic_to_wire(broker, topic))

    @unary(operation="delete", resource=TOPIC)
    async def DeleteTopic(self, request: pb.DeleteTopicRequest, context: Context) -> pb.DeleteTopicReply:
        broker = self._serving.running()
        await broker.delete_topic(request.name, _timeout_s(request.timeout_ms), request.command_id)
        return pb.DeleteTopicReply()

    @unary(operation="alter", resource=TOPIC)
    async def AddPartition(self, request: pb.AddPartitionRequest, context: Context) -> pb.AddPartitionReply:
        broker = self._serving.running()
        await count_partition(self._serving, request.topic)
        added = await broker.add_partition(request.topic, _timeout_s(request.timeout_ms), request.command_id)
        return pb.AddPartitionReply(partition=partition_to_wire(broker, added))

    @unary(operation="delete", resource=TOPIC)
    async def DeletePartition(self, request: pb.DeletePartitionRequest, context: Context) -> pb.DeletePartitionReply:
        require(request, "partition", lenient=leaves_zeros_out(context))
        broker = self._serving.running()
        timeout_s = _timeout_s(request.timeout_ms)
        await broker.delete_partition(request.topic, request.partition, timeout_s, request.command_id)
        return pb.DeletePartitionReply()

    @unary(operation="alter", resource=TOPIC)
    async def TransferLeader(self, request: pb.TransferLeaderRequest, context: Context) -> pb.TransferLeaderReply:
        require(request, "partition", lenient=leaves_zeros_out(context))
        broker = self._serving.running()
        partition = await find_queue(broker, await find_topic(broker, request.topic), request.partition)
        leader, term = await self._transfers.transfer(partition, request.to, _timeout_s(request.timeout_ms))
        return pb.TransferLeaderReply(leader=leader, leader_epoch=term)

    @unary(operation="describe", resource=CLUSTER)
    async def ClusterStatus(self, request: pb.ClusterStatusRequest, context: Context) -> pb.ClusterStatusReply:
        broker = self._serving.broker
        reply = pb.ClusterStatusReply(
            cluster_id=self._formation.cluster_id,
            broker_id=self._formation.broker_id,
            metadata_leader=self._application.metadata_leader(),
            version=VERSION,
            state=self._serving.state.value,
            reason=self._application.reason,
            metrics_address=self._serving.metrics_address,
            metadata_voters=self._application.metadata_voters(),
            heard=[pb.HeardBroker(id=b, age_ms=int(s * 1000)) for b, s in self._application.heard_ages_s().items()],
        )
        if broker is not None:
            reply.feature_level = broker.registry.feature_level
            reply.brokers.extend(brokers_to_wire(broker.registry.get_all_brokers()))
        described = Slice(self._serving.slices, DESCRIBED_MAX)
        for status in self._application.replica_statuses():
            replica = _status_to_wire(status, broker)
            if not replica.topic or may_describe("topic", replica.topic):  # the metadata's has no topic
                reply.replicas.append(replica)
            if described.spend(1):
                await described.rest()
        if broker is not None:
            reply.replicas.extend(
                pb.ReplicaStatus(
                    topic=queue.topic,
                    topic_id=queue.topic_id,
                    partition=queue.partition,
                    role="failed",
                    reason=f"{error.code}: {error}",
                )
                for queue, error in broker.not_opened()
                if may_describe("topic", queue.topic)
            )
        return reply

    @unary(operation="alter", resource=LEVEL)
    async def FeatureLevel(self, request: pb.FeatureLevelRequest, context: Context) -> pb.FeatureLevelReply:
        upgrade = self._serving.running().upgrade
        if request.action == pb.FeatureLevelRequest.HOLD:
            await upgrade.hold(request.level)
        elif request.action == pb.FeatureLevelRequest.RELEASE:
            await upgrade.release()
        return pb.FeatureLevelReply(
            broker_id=self._formation.broker_id,
            level=upgrade.level,
            known=KNOWN_LEVEL,
            held=upgrade.held,
            members=[
                pb.LevelMember(
                    broker_id=member.broker_id,
                    announced=member.announced,
                    registered=member.registered,
                    voter=member.voter,
                    replicas=member.replicas,
                )
                for member in upgrade.members()
            ],
        )

    @unary(operation="known", resource=CLUSTER, filters=True)
    async def DescribeScan(self, request: pb.DescribeScanRequest, context: Context) -> pb.DescribeScanReply:
        scan_id = check_scan_id(request.scan_id)
        broker = self._serving.running()
        served = (_sent_to_wire(broker, sent) for sent in broker.scans.describe(scan_id))
        return pb.DescribeScanReply(served=[sent for sent in served if may_describe("topic", sent.topic)])

    @unary(operation="describe", resource=CLUSTER)
    async def ListScans(self, request: pb.ListScansRequest, context: Context) -> pb.ListScansReply:
        broker = self._serving.running()
        return pb.ListScansReply(
            scans=[
                pb.ScanSummary(
                    scan_id=total.scan_id,
                    bytes=total.bytes,
                    leader_bytes=total.leader_bytes,
                    records=total.records,
                    age_ms=broker.scans.age_ms(total.last_s),
                )
                for total in broker.scans.totals()
            ]
        )

    @unary(operation="secret", resource=CLUSTER)
    async def DescribeSelf(self, request: pb.DescribeSelfRequest, context: Context) -> pb.DescribeSelfReply:
        check_proof(request.proof, describe_proof(self._secret, request.nonce))
        formation = self._formation
        first = formation.first_entry
        return pb.DescribeSelfReply(
            broker_id=formation.broker_id,
            incarnation=formation.incarnation,
            cluster_id=formation.cluster_id,
            first_entry=first.head + first.payload if first is not None else b"",
            empty=await formation.is_empty(),
            address=self._application.address,
            peer_address=self._application.peer_address,
        )

    @unary(operation="secret", resource=CLUSTER)
    async def Form(self, request: pb.FormRequest, context: Context) -> pb.FormReply:
        expected = form_proof(self._secret, request.nonce, request.cluster_id, request.first_entry)
        check_proof(request.proof, expected)
        await self._formation.form(request.cluster_id, request.first_entry)
        return pb.FormReply()

    @unary(operation="secret", resource=CLUSTER)
    async def Survey(self, request: pb.SurveyRequest, context: Context) -> pb.SurveyReply:
        check_proof(request.proof, survey_proof(self._secret, request.nonce))
        formation, recovery, broker = self._formation, self._recovery, self._serving.broker
        reply = pb.SurveyReply(
            cluster_id=formation.cluster_id,
            broker_id=formation.broker_id,
            state=self._serving.state.value,
            reason=self._application.reason,
            challenge=recovery.challenge(),
            alive=recovery.alive(),
            replicas=map(report_to_wire, recovery.reports()),
        )
        if broker is not None:
            reply.brokers.extend(brokers_to_wire(broker.registry.get_all_brokers()))
            reply.placed.extend(
                pb.PlacedPartition(
                    topic=queue.topic,
                    topic_id=queue.topic_id,
                    partition=queue.partition,
                    replicas=[r.broker_id for r in queue.replicas],
                )
                for topic in broker.registry.get_all_topics()
                for queue in topic.queues
            )
        return reply

    @unary(operation="secret", resource=CLUSTER)
    async def TakeOver(self, request: pb.TakeOverRequest, context: Context) -> pb.TakeOverReply:
        check_proof(request.proof, take_over_proof(self._secret, request.challenge, request.orders))
        self._recovery.spend(request.challenge)
        orders = _parse_orders(request.orders)
        results = await asyncio.gather(*(item(pb.TakeOverResult, self._take_over(order)) for order in orders))
        return pb.TakeOverReply(results=results)

    async def _take_over(self, order: RecoveryOrder) -> pb.TakeOverResult:
        await self._recovery.lead_as_ordered(order)
        return pb.TakeOverResult()


def _left_s(context: Context) -> float:
    """Return the seconds until the client stops waiting, minus the time of an answer."""
    remaining_s: float | None = context.time_remaining()
    return CALL_TIMEOUT_S_MAX if remaining_s is None else remaining_s - min(MARGIN_S, remaining_s / 2)


def _timeout_s(timeout_ms: int) -> float:
    return min(timeout_ms / 1000 or TOPIC_TIMEOUT_S, CALL_TIMEOUT_S_MAX)


def _settings(settings: Sequence[pb.Setting]) -> list[tuple[str, str]]:
    return [(setting.name, setting.value) for setting in settings]


def _parse_orders(packed: bytes) -> list[RecoveryOrder]:
    return [order_from_wire(order) for order in parse(pb.TakeOverOrders, packed).orders]


def _status_to_wire(status: GroupStatus, broker: Broker | None) -> pb.ReplicaStatus:
    topic = broker.registry.get_topic_by_id(status.group.topic_id) if broker is not None else None
    held = broker.replica_host.get(status.group.topic_id, status.group.partition) if broker is not None else None
    name = "" if status.group == METADATA_GROUP else status.group.topic_id.hex() if topic is None else topic.name
    return pb.ReplicaStatus(
        topic=name,
        topic_id=status.group.topic_id,
        partition=status.group.partition,
        role=status.role.value,
        term=status.term,
        leader=status.leader or 0,
        last_index=status.last_index,
        durable_index=status.durable_index,
        commit_index=status.commit_index,
        high_watermark=status.high_watermark,
        log_start=status.log_start if held is None else held.log_start,
        chain_crc=status.chain_crc,
        reason=status.reason,
        bytes=status.size_bytes,
    )


def _sent_to_wire(broker: Broker, sent: ScanProgress) -> pb.ScanServed:
    topic = broker.registry.get_topic_by_id(sent.group.topic_id)
    return pb.ScanServed(
        topic_id=sent.group.topic_id,
        topic=topic.name if topic is not None else "",
        partition=sent.group.partition,
        leader=sent.leader,
        bytes=sent.bytes,
        records=sent.records,
        age_ms=broker.scans.age_ms(sent.last_s),
    )
