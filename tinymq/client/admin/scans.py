"""Which brokers served a scan: combines the counts of all brokers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tinymq.client.admin.broker_calls import Replies, answers_of
from tinymq.proto import tinymq_pb2 as pb


@dataclass(frozen=True, slots=True)
class ServedBy:
    """The data of one partition that one broker sent to a scan in one role.

    for part in mq.admin.describe_scan("nightly").served:
        print(part.broker, part.partition, part.role, part.bytes)
    """

    broker: int
    topic: str  # its name, or its id in hex if the topic was deleted
    partition: int
    role: str  # of the broker in the partition when it sent them: "leader" or "follower"
    bytes: int  # as stored; records that a repeated task fetched twice count twice
    records: int
    last_s: float  # how long ago the last of them was sent


@dataclass(frozen=True, slots=True)
class ScanDescription:
    """The brokers that served a scan, by topic, partition, broker and role.

    Empty when no broker knows the scan. A broker remembers the latest scans, and forgets them when it stops.

        with mq.scan("orders", 0, 0, 2, scan_id="nightly") as scan:
            print(sum(batch.num_rows for batch in scan))
        print(mq.admin.describe_scan("nightly").bytes_by("leader"))
    """

    scan_id: str
    served: tuple[ServedBy, ...]
    silent: tuple[int, ...] = ()  # brokers that did not answer: they may have served the scan, too

    def bytes_by(self, role: str) -> int:
        """The number of bytes that brokers sent as "leader", or as "follower"."""
        return sum(each.bytes for each in self.served if each.role == role)


@dataclass(frozen=True, slots=True)
class ScanSummary:
    """The totals of one scan, over all brokers that answered.

    for scan in mq.admin.list_scans():
        print(scan.scan_id, scan.records, scan.leader_bytes)
    """

    scan_id: str
    brokers: tuple[int, ...]  # the brokers that served it
    bytes: int
    leader_bytes: int  # of them, the bytes that partition leaders sent
    records: int
    last_s: float  # how long ago the last of them was sent


def describe(scan_id: str, replies: Replies) -> ScanDescription:
    """Combine the brokers' replies, by id: a DescribeScanReply each, or an error. Raises the last error if no broker
    answers."""
    answers = answers_of(replies)
    served = [
        ServedBy(
            broker=broker,
            topic=sent.topic or sent.topic_id.hex(),
            partition=sent.partition,
            role="leader" if sent.leader else "follower",
            bytes=sent.bytes,
            records=sent.records,
            last_s=sent.age_ms / 1000,
        )
        for broker, reply in answers.items()
        for sent in reply.served
    ]
    served.sort(key=lambda each: (each.topic, each.partition, each.broker, each.role))
    return ScanDescription(scan_id, tuple(served), silent=tuple(sorted(replies.keys() - answers.keys())))


def summarise(replies: Replies) -> list[ScanSummary]:
    """Every scan that a broker knows, the latest first. `replies` and errors: as `describe`."""
    found: dict[str, list[tuple[int, pb.ScanSummary]]] = {}
    for broker, reply in answers_of(replies).items():
        for scan in reply.scans:
            found.setdefault(scan.scan_id, []).append((broker, scan))
    summaries = [
        ScanSummary(
            scan_id,
            brokers=tuple(sorted(broker for broker, _ in parts)),
            bytes=sum(part.bytes for _, part in parts),
            leader_bytes=sum(part.leader_bytes for _, part in parts),
            records=sum(part.records for _, part in parts),
            last_s=min(part.age_ms for _, part in parts) / 1000,
        )
        for scan_id, parts in found.items()
    ]
    return sorted(summaries, key=lambda scan: (scan.last_s, scan.scan_id))
