"""Every replica at the end of a run: its commit by its broker's /status, and its log, from the data directory of the
stopped broker. Nothing in the directory changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinymq.base.config import Limits
from tinymq.base.errors import StorageError
from tinymq.base.types import METADATA_GROUP
from tinymq.format.entry import Entry, pack_header
from tinymq.log.files.layout import GROUPS, SEGMENT, first_index_of
from tinymq.log.segment.dump import DumpedEntry, dump_segment
from tinymq_chaos.checkers.common.replica_reader import ReplicaReader
from tinymq_chaos.history import METADATA, FinalReplica, Log, StoredEntry, topic_key

METADATA_ID = METADATA_GROUP.topic_id.hex()


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica by its broker's report."""

    log: Log
    topic_id: str  # hex
    broker: int
    role: str
    high_watermark: int
    commit_index: int
    log_start: int
    reason: str = ""


def reported_replicas(broker: int, status: Mapping[str, Any]) -> Iterator[ReplicaStatus]:
    """Yield all replicas on a /status page, except those whose topic the registry has deleted, of which nothing is
    promised. A replica that its broker could not open has no commit.
    """
    for replica in status["replicas"]:
        topic_id, name = replica["topic_id"], replica["topic"]
        if name == topic_id:
            continue
        log = METADATA if topic_id == METADATA_ID else (topic_key(name, bytes.fromhex(topic_id)), replica["partition"])
        yield ReplicaStatus(
            log,
            topic_id,
            broker,
            role=replica["role"],
            high_watermark=replica.get("high_watermark", 0),
            commit_index=replica.get("commit_index", 0),
            log_start=replica.get("log_start", 0),
            reason=replica.get("reason", ""),
        )


class StoppedLogs:
    """The logs of stopped brokers. Replicas hold the same bytes, so each batch is decoded once."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._collector = ReplicaReader(limits)

    def replica(self, status: ReplicaStatus, data: Path) -> tuple[FinalReplica, str]:
        """Return the replica's log up to its commit, and why it is incomplete, or ""."""
        folder = data / GROUPS / status.topic_id / str(status.log[1])
        entries, problem = self.entries(folder, status.commit_index)
        last = entries[-1].index if entries else 0
        if not problem and last < status.commit_index:
            problem = f"entry {last} is the last one in {folder.name}, and {status.commit_index} was committed"
        found = FinalReplica(
            status.log,
            status.broker,
            status.role,
            high_watermark=status.high_watermark,
            commit_index=status.commit_index,
            log_start=status.log_start,
            entries=entries,
        )
        return found, problem

    def entries(self, folder: Path, upto: int) -> tuple[tuple[StoredEntry, ...], str]:
        """Return the entries in a group's directory up to index `upto`, and what was wrong before that, or ""."""
        found: list[StoredEntry] = []
        for path in segments(folder):
            try:
                for item in dump_segment(path):
                    if not isinstance(item, DumpedEntry):
                        problem = getattr(item, "problem", None)
                        if problem and (not found or found[-1].index < upto):
                            return tuple(found), f"{path.name}: {problem}"
                    elif item.header.index <= upto:
                        entry = Entry(item.header, pack_header(item.header), item.payload)
                        found.append(self._collector.entry(entry))
            except StorageError as error:
                return tuple(found), f"{path.name}: {error}"
        return tuple(found), ""


def segments(folder: Path) -> Iterable[Path]:
    """Return the segments in the order of their first entries."""
    paths = folder.iterdir() if folder.is_dir() else ()
    firsts = {path: first for path in paths if (first := first_index_of(path.name, SEGMENT)) is not None}
    return sorted(firsts, key=lambda path: firsts[path])
