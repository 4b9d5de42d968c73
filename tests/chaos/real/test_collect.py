"""Replicas are read from the data directories of stopped brokers, and nothing there changes."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tinymq.log.files.files import RealFiles
from tinymq.testing.cluster import Cluster
from tinymq_chaos.history import METADATA, History
from tinymq_chaos.real.cluster.cluster import Cluster as RealCluster
from tinymq_chaos.real.product import system
from tinymq_chaos.real.product.replica_logs import METADATA_ID, ReplicaStatus, StoppedLogs, reported_replicas, segments
from tinymq_chaos.records import CHANGED, make_value

NAMES = [f"p-{n}" for n in range(40)]


class Stopped:
    """One broker that stored NAMES in one partition and has stopped."""

    def __init__(self, data: Path, topic_id: str) -> None:
        self.data = data
        self.said = ReplicaStatus(
            (f"t#{topic_id}", 0),
            topic_id,
            1,
            "leader",
            high_watermark=len(NAMES),
            commit_index=self._last_index(topic_id),
            log_start=0,
        )

    @property
    def folder(self) -> Path:
        return self.data / "groups" / self.said.topic_id / "0"

    @property
    def last_segment(self) -> Path:
        return list(segments(self.folder))[-1]

    def _last_index(self, topic_id: str) -> int:
        entries, problem = StoppedLogs().entries(self.data / "groups" / topic_id / "0", 1 << 60)
        assert problem == ""
        return entries[-1].index


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    folder = tmp_path_factory.mktemp("kept")
    with Cluster(nodes=1, files_factory=lambda _: RealFiles(folder)) as cluster:
        client = cluster.client()
        client.admin.create_topic("t", partitions=1, replication_factor=1)
        for name in NAMES:
            client.send("t", make_value(name))
        topic_id = client.admin.describe_topic("t").topic_id.hex()
    return Stopped(folder, topic_id)


@pytest.fixture
def stopped(kept: Stopped, tmp_path: Path) -> Stopped:
    """A copy for each test."""
    shutil.copytree(kept.data, tmp_path / "data")
    return Stopped(tmp_path / "data", kept.said.topic_id)


def digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(str(p).encode() + p.read_bytes() for p in files)).hexdigest()


def test_every_record_is_found_and_nothing_is_changed(stopped: Stopped) -> None:
    before = digest(stopped.data)
    replica, problem = StoppedLogs().replica(stopped.said, stopped.data)
    assert problem == ""
    assert [name for entry in replica.entries for name in entry.records] == NAMES
    assert (replica.log, replica.broker, replica.high_watermark) == (stopped.said.log, 1, len(NAMES))
    assert all(b.prev_crc == a.header_crc for a, b in zip(replica.entries, replica.entries[1:], strict=False))
    assert digest(stopped.data) == before


def test_no_entry_beyond_what_was_committed_counts(stopped: Stopped) -> None:
    said = replace(stopped.said, commit_index=stopped.said.commit_index - 5)
    replica, problem = StoppedLogs().replica(said, stopped.data)
    assert problem == ""
    assert replica.entries[-1].index == said.commit_index


def test_missing_committed_entries_are_reported(stopped: Stopped) -> None:
    said = replace(stopped.said, commit_index=stopped.said.commit_index + 1)
    _, problem = StoppedLogs().replica(said, stopped.data)
    assert problem == f"entry {said.commit_index - 1} is the last one in 0, and {said.commit_index} was committed"


def test_a_flipped_bit_is_reported_and_later_entries_are_not_read(stopped: Stopped) -> None:
    path = stopped.last_segment
    content = bytearray(path.read_bytes())
    place = content.index(make_value(NAMES[20])[:8])
    content[place] ^= 1
    path.write_bytes(content)
    replica, problem = StoppedLogs().replica(stopped.said, stopped.data)
    assert path.name in problem
    names = [name for entry in replica.entries for name in entry.records]
    assert names == NAMES[:20]
    assert not any(name.startswith(CHANGED) for name in names)


def test_a_missing_directory_has_no_entries(stopped: Stopped) -> None:
    replica, problem = StoppedLogs().replica(stopped.said, stopped.data / "elsewhere")
    assert replica.entries == ()
    assert "was committed" in problem


class Asked:
    """A cluster of which some brokers report their state, at the second attempt at the earliest."""

    def __init__(self, folder: Path, *talking: int) -> None:
        self.brokers = (1, 2, 3)
        self.up = {1, 2, 3}
        self.tries: Counter[int] = Counter()
        self._folder, self._talking = folder, talking

    def status(self, broker: int) -> dict[str, Any] | None:
        self.tries[broker] += 1
        return {"replicas": []} if broker in self._talking and self.tries[broker] > 1 else None

    def running(self, broker: int) -> bool:
        return broker in self.up

    def stop(self, broker: int) -> None:
        self.up.remove(broker)

    def log_file(self, broker: int) -> Path:
        return self._folder / f"broker-{broker}.log"


def test_a_broker_without_a_report_on_replicas_is_asked_again_and_then_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "ANSWER_S", 0.3)
    cluster = Asked(tmp_path, 1, 3)
    collected = system.ProductSystem(cast(RealCluster, cluster)).collect(History(), hurt={2})
    assert collected.wrong == ["broker 2 does not report on its replicas, so they are not judged"]
    assert (collected.notes, cluster.up) == ([], set())
    assert (cluster.tries[1], cluster.tries[3]) == (2, 2)
    assert cluster.tries[2] > 2
    whole = system.ProductSystem(cast(RealCluster, Asked(tmp_path, 1, 2, 3))).collect(History(), hurt=())
    assert whole.wrong == []


class Moving(Asked):
    """A cluster in which broker 2 campaigns at first, because a leadership moves to it."""

    def status(self, broker: int) -> dict[str, Any] | None:
        self.tries[broker] += 1
        return {"replicas": [{"role": "candidate" if (broker, self.tries[broker]) == (2, 1) else "follower"}]}


def test_a_leadership_that_moves_meanwhile_is_waited_for(tmp_path: Path) -> None:
    cluster = Moving(tmp_path)
    pages = system.ProductSystem(cast(RealCluster, cluster))._pages()
    assert {page["replicas"][0]["role"] for page in pages.values()} == {"follower"}
    assert cluster.tries == {1: 1, 2: 2, 3: 1}


def test_a_page_names_replicas_of_topics_that_are_there() -> None:
    ids = ["ab" * 16, "cd" * 16]
    rest = {"role": "follower", "high_watermark": 7, "commit_index": 9, "log_start": 2, "reason": ""}
    page = {"replicas": [
        {"topic": "(metadata)", "topic_id": METADATA_ID, "partition": 0, **rest},
        {"topic": "t", "topic_id": ids[0], "partition": 3, **rest},
        {"topic": ids[1], "topic_id": ids[1], "partition": 0, **rest},  # deleted: the registry knows no name
        {"topic": "u", "topic_id": ids[0], "partition": 1, "role": "failed", "reason": "CorruptData: it is"},
    ]}  # fmt: skip
    said = list(reported_replicas(2, page))
    assert [each.log for each in said] == [METADATA, (f"t#{ids[0]}", 3), (f"u#{ids[0]}", 1)]
    assert said[1] == ReplicaStatus(
        (f"t#{ids[0]}", 3), ids[0], 2, "follower", high_watermark=7, commit_index=9, log_start=2
    )
    assert (said[2].role, said[2].commit_index) == ("failed", 0)
