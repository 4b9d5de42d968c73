"""Delayed batches of the cluster in memory: staged as a broker does, listed and canceled. Nothing publishes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinymq.base.errors import TinymqError
from tinymq.broker.state.delayed import delayed_place, schedule_id_at
from tinymq.broker.state.producers import extend
from tinymq.format.batch import parse_batch_header
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import to_wire

if TYPE_CHECKING:
    from tests.client.fake_cluster import FakeCluster, FakePartition

NOW_US = 1_700_000_000_000_000


def stage(at: FakePartition, batch: pb.ProduceBatch) -> int:
    """Store a delayed batch, and return its place."""
    at.schedule_ids += 1
    due_us = batch.deliver_at_us if batch.HasField("deliver_at_us") else NOW_US + batch.delay_us
    at.delayed[at.schedule_ids] = due_us, batch.payload
    header = parse_batch_header(batch.payload)
    place = delayed_place(at.schedule_ids)
    if header.producer_id:
        at.producers[header.producer_id] = extend(at.producers.get(header.producer_id), header, place, NOW_US)
    return place


def answer(at: FakePartition, batch: pb.ProduceBatch, place: int, *, duplicate: bool = False) -> pb.ProduceResult:
    result = pb.ProduceResult(
        request_id=batch.request_id, append_time_us=NOW_US, leader_epoch=at.epoch, duplicate=duplicate
    )
    if schedule_id := schedule_id_at(place):
        due_us = NOW_US + batch.delay_us if batch.HasField("delay_us") else batch.deliver_at_us
        result.schedule_id, result.deliver_at_us = schedule_id, due_us
    else:
        result.base_offset = place
    return result


def scheduled(cluster: FakeCluster, broker: int, request: pb.ListScheduledRequest) -> pb.ListScheduledReply:
    try:
        at = cluster.find(request.topic_id, request.partition, broker)
        if at.leader != broker:
            raise cluster.not_leader(at)
    except TinymqError as error:
        return pb.ListScheduledReply(error=to_wire(error))
    ids = [schedule_id for schedule_id in at.delayed if schedule_id > request.after]
    reply = pb.ListScheduledReply(more=len(ids) > request.limit)
    for schedule_id in ids[: request.limit]:
        due_us, payload = at.delayed[schedule_id]
        reply.batches.add(
            schedule_id=schedule_id, deliver_at_us=due_us, staged_at_us=NOW_US, records=1, bytes=len(payload)
        )
    return reply


def cancel(cluster: FakeCluster, broker: int, request: pb.CancelScheduledRequest) -> pb.CancelScheduledReply:
    try:
        at = cluster.find(request.topic_id, request.partition, broker)
        if at.leader != broker:
            raise cluster.not_leader(at)
    except TinymqError as error:
        return pb.CancelScheduledReply(error=to_wire(error))
    return pb.CancelScheduledReply(canceled=at.delayed.pop(request.schedule_id, None) is not None)
