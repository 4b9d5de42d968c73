"""Hand-made histories in a few lines: a good one that tests then spoil."""

from __future__ import annotations

import zlib

from tinymq_chaos.checkers import AnomalyKind, check
from tinymq_chaos.history import Call, FinalReplica, History, Log, StoredEntry

T = "t#" + "0f" * 16
LOG: Log = (T, 0)


class Story:
    """A clock that the test sets, and short methods for calls."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.history = History(lambda: self.now_s)
        self.entries: list[tuple[int, tuple[str, ...]]] = []  # of LOG: (term, records)

    def send(self, *records: str, at: int | None = None, by: str = "p", **args: object) -> Call:
        """Send a record, acknowledged at offset `at`; not at all, if None."""
        call = self.begin(by, "send", topic=T, partition=0, records=list(records), **{"idempotent": True} | args)
        if at is not None:
            call.ok([0, at])
        return call

    def begin(self, process: str, kind: str, within_s: float = 1.0, **args: object) -> Call:
        self.now_s += 0.1
        call = self.history.invoke(process, kind, self.now_s + within_s, **args)
        self.now_s += 0.01
        return call

    def poll(self, base: int, *records: str, reader: str = "r", replica: str = "leader") -> None:
        call = self.begin(reader, "poll", reader=reader, topic=T, replica=replica)
        call.ok([[0, base, list(records)]])

    def stored(self, *records: str, term: int = 1) -> None:
        """Add an entry that all replicas hold."""
        self.entries.append((term, records))

    def replica(self, broker: int, upto: int | None = None, role: str = "follower", log: Log = LOG) -> FinalReplica:
        """Return a replica with the entries of `stored`, the first `upto` of them committed."""
        entries = chained(self.entries[:upto])
        end = entries[-1].base_offset + len(entries[-1].records) if entries else 0
        return FinalReplica(
            log, broker, role, high_watermark=end, commit_index=len(entries), log_start=0, entries=tuple(entries)
        )

    def end(self, *replicas: FinalReplica) -> None:
        """End the story: quiet, and the replicas as they are, by default three good ones."""
        self.history.calm()
        self.now_s += 10
        self.history.end()
        self.history.replicas = list(replicas) or [self.replica(1, role="leader"), self.replica(2), self.replica(3)]

    def kinds(self) -> set[AnomalyKind]:
        found = check(self.history)
        for anomaly in found:
            assert str(anomaly).startswith(anomaly.kind)
            assert str(anomaly).count("\n") < 2
        again = check(History.read(self.history.lines()))  # a stored history gives the same anomalies
        assert [a.kind for a in again] == [a.kind for a in found]
        return {anomaly.kind for anomaly in found}


def chained(entries: list[tuple[int, tuple[str, ...]]]) -> list[StoredEntry]:
    """Return entries with indexes, offsets and checksums that follow from one another."""
    made: list[StoredEntry] = []
    crc = offset = 0
    for index, (term, records) in enumerate(entries, 1):
        header_crc = zlib.crc32(repr((crc, index, term, records)).encode())
        made.append(StoredEntry(index, term, offset, crc, header_crc, records))
        crc, offset = header_crc, offset + len(records)
    return made


def good() -> Story:
    """Two producers, one reader, three replicas."""
    story = Story()
    story.stored()
    story.send("p-0", "p-1", at=0)
    story.stored("p-0", "p-1")
    story.poll(0, "p-0", "p-1")
    story.send("q-0", at=2, by="q")
    story.stored("q-0")
    story.send("q-1", by="q").unknown("OutcomeUnknown")
    story.stored("q-1")
    story.send("q-2", by="q").failed("DeadlineExceeded")
    story.poll(2, "q-0", "q-1")
    story.poll(0, "p-0", "p-1", "q-0", reader="f", replica="follower")
    story.begin("d", "offsets", topic=T).ok([[0, 0, 4]])
    story.begin("d", "open", reader="d", topic=T, replica="leader").ok([[0, 0]])
    story.history.led(LOG, 1, 1)
    return story
