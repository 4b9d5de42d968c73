"""Compares the replicas of each partition: by the brokers' reports, and by the bytes on their disks."""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinymq import Client
from tinymq.base.types import GroupId, TopicId
from tinymq.log.files.files import RealFiles
from tinymq.log.files.layout import SEGMENT, first_index_of, group_directory, in_group
from tinymq.log.segment.scan import frames

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica, as its broker describes it."""

    broker: int
    partition: int
    role: str
    commit_index: int
    high_watermark: int
    chain_crc: int  # covers, through the chain, every byte up to commit_index


Partitions = Mapping[int, Sequence[Replica]]


def describe(client: Client, topic: str) -> Partitions:
    """Return the replicas of `topic` that answer, by partition."""
    described: dict[int, list[Replica]] = defaultdict(list)
    for broker in client.admin.cluster_status().brokers:
        for r in broker.replicas:
            if r.topic == topic:
                replica = Replica(broker.broker_id, r.partition, r.role, r.commit_index, r.high_watermark, r.chain_crc)
                described[r.partition].append(replica)
    return described


def wait_equal(
    client: Client, topic: str, records: Mapping[int, int], replicas: int, timeout_s: float
) -> tuple[Partitions, list[str]]:
    """Wait until each partition p has `replicas` equal replicas with records[p] records or more. Returns the replicas,
    and the differences if the deadline passes first.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        described = describe(client, topic)
        held = {p: max([records[p], *(replica.high_watermark for replica in described.get(p, ()))]) for p in records}
        if not differences(described, held, replicas) or time.monotonic() >= deadline:
            return described, differences(described, records, replicas)
        time.sleep(POLL_S)


def differences(described: Partitions, records: Mapping[int, int], replicas: int) -> list[str]:
    """Return the differences between the replicas, and what they lack. Pure."""
    wrong = []
    for partition, count in sorted(records.items()):
        these = described.get(partition, [])
        if len(these) != replicas:
            wrong.append(f"partition {partition}: {len(these)} of {replicas} replicas answer")
        wrong += [
            f"partition {partition}: broker {r.broker} ({r.role}) has {r.high_watermark} records of {count}"
            for r in these
            if r.high_watermark != count
        ]
        if len({(r.commit_index, r.chain_crc) for r in these}) > 1:
            states = ", ".join(f"broker {r.broker}: index {r.commit_index} crc {r.chain_crc:08x}" for r in these)
            wrong.append(f"partition {partition}: {states}")
    return wrong


def digest(data_folder: Path, topic_id: bytes, replica: Replica) -> str:
    """A hash of the frames of `replica` up to its commit index, read from the disk of its stopped broker and verified.

    Raises CorruptData.
    """
    files = RealFiles(data_folder)
    folder = group_directory(GroupId(TopicId(topic_id), replica.partition))
    firsts = [first for name in files.list(folder) if (first := first_index_of(name, SEGMENT)) is not None]
    result = hashlib.blake2b()
    for first in sorted(firsts):
        file = files.open(in_group(folder, first, SEGMENT))
        try:
            for frame in frames(file):
                if frame.header.index > replica.commit_index:
                    break
                result.update(frame.head)
                result.update(frame.payload)
        finally:
            file.close()
    return result.hexdigest()
