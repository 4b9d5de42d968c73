"""Who served a scan, as the brokers have counted it: their answers put together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tinymq.proto import tinymq_pb2 as pb


@dataclass(frozen=True, slots=True)
class ServedBy:
    """What one broker sent to a scan, of one partition, in one role."""

    broker: int
    topic: str  # its id in hex, when there is no such topic any more
    partition: int
    role: str  # "leader" or "follower": what the broker was to the partition then
    bytes: int  # as stored; what was fetched twice, by a task that was run again, counts twice
    records: int
    last_s: float  # how long ago the last of them was sent


@dataclass(frozen=True, slots=True)
class ScanDescription:
    """Who served a scan: by topic, partition, broker and role. Empty when no broker knows it, or none does any more:
    a broker remembers the latest scans, until it stops."""

    scan_id: str
    served: tuple[ServedBy, ...]
    silent: tuple[int, ...] = ()  # brokers that were asked and did not answer: they may have served, too

    def bytes_by(self, role: str) -> int:
        """What brokers sent as "leader", or as "follower"."""
        return sum(each.bytes for each in self.served if each.role == role)


@dataclass(frozen=True, slots=True)
class ScanSummary:
    """One scan, over all brokers that answered."""

    scan_id: str
    brokers: tuple[int, ...]  # that served it
    bytes: int
    leader_bytes: int  # of them: sent by who led the partition then
    records: int
    last_s: float  # how long ago the last of them was sent


def describe(scan_id: str, replies: Mapping[int, pb.DescribeScanReply], silent: Iterable[int]) -> ScanDescription:
    """`replies` by broker."""
    served = [
        ServedBy(
            broker,
            sent.topic or sent.topic_id.hex(),
            sent.partition,
            "leader" if sent.leader else "follower",
            sent.bytes,
            sent.records,
            sent.age_ms / 1000,
        )
        for broker, reply in replies.items()
        for sent in reply.served
    ]
    served.sort(key=lambda each: (each.topic, each.partition, each.broker, each.role))
    return ScanDescription(scan_id, tuple(served), tuple(sorted(silent)))


def summarise(replies: Mapping[int, pb.ListScansReply]) -> list[ScanSummary]:
    """Every scan that a broker knows, the latest first."""
    found: dict[str, list[tuple[int, pb.ScanSummary]]] = {}
    for broker, reply in replies.items():
        for scan in reply.scans:
            found.setdefault(scan.scan_id, []).append((broker, scan))
    summaries = [
        ScanSummary(
            scan_id,
            tuple(sorted(broker for broker, _ in parts)),
            sum(part.bytes for _, part in parts),
            sum(part.leader_bytes for _, part in parts),
            sum(part.records for _, part in parts),
            min(part.age_ms for _, part in parts) / 1000,
        )
        for scan_id, parts in found.items()
    ]
    return sorted(summaries, key=lambda scan: (scan.last_s, scan.scan_id))
