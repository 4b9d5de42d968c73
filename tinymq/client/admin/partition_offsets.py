"""The first and last offsets of a topic's partitions, and the offsets of places in them, for the admin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.offsets import list_offsets
from tinymq.client.common.argument_checks import check_topic
from tinymq.client.common.start_positions import END, OffsetQuestion, Place, by_partition
from tinymq.proto import tinymq_pb2 as pb


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Where a partition begins and ends: offsets from log_start up to, and not including, high_watermark.

    for partition, offsets in mq.admin.offsets("orders").items():
        print(partition, offsets.high_watermark - offsets.log_start)
    """

    log_start: int
    high_watermark: int


async def find_place(
    cluster: Cluster, name: str, place: Place, timeout_s: float, *, partial: bool = False
) -> Mapping[int, pb.OffsetAnswer]:
    """Ask for a place in every partition that the topic has now; any replica may answer.

    Raises UnknownTopic; DeadlineExceeded when no replica of a partition answers, unless `partial` leaves it out.
    """
    check_topic(name)
    left = cluster.countdown(timeout_s)
    await cluster.refresh([name], timeout_s=left())  # partitions may have been added or deleted
    topic = await cluster.topic(name, left())
    places = by_partition(place, topic.numbers)
    asks = {p: at.timestamp_us if isinstance(at, OffsetQuestion) else END for p, at in places.items()}
    return await list_offsets(cluster, topic, asks, timeout_s=left(), leader_only=False, partial=partial)
