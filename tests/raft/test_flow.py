"""Large entries, long backlogs, stopped followers, lone writes: hazards 12, 15, 17 and 18 of stock PySyncObj."""

from __future__ import annotations

import pytest

from tests.raft.harness import Cluster, simulate
from tests.raft.traffic import appends, fails, listen
from tinymq.base.config import KIB, Limits
from tinymq.base.errors import QuotaExceeded
from tinymq.raft.net.transport import Channel
from tinymq.raft.roles import replication


async def a_large_entry_travels_whole(cluster: Cluster) -> None:
    await cluster.settle()
    heard = listen(cluster)
    payload = cluster.rng.randbytes(3 << 20)
    await cluster.commit(payload)
    await cluster.settle()
    for follower in cluster.followers():
        assert follower.machine().payloads == [payload]
        assert [a.entries for a in appends(heard, follower.id)] == [1]


def test_12_a_large_entry_travels_whole() -> None:
    simulate(a_large_entry_travels_whole, limits=Limits())


def test_17_a_backlog_is_sent_in_slices() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        behind = cluster.followers()[0]
        behind.kill()
        for _ in range(12):
            await cluster.commit(bytes(400 * KIB))
        heard = listen(cluster)
        await behind.start()
        await cluster.settle()
        sizes = [len(body) for _, b, _, m, body in heard if b == behind.id and m.HasField("append")]
        assert max(sizes) <= replication.APPEND_BYTES + 401 * KIB
        assert len([s for s in sizes if s]) >= 4

    simulate(scenario, limits=Limits())


def test_17_the_journal_returns_no_payloads() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        journal = cluster.leader().group().replica.state.raft._SyncObj__raftLog
        assert [journal[i][0] for i in range(len(journal))] == [b""] * len(journal)
        assert journal[-1] == (b"", 3, 1)
        assert (journal[0], len(journal)) == ((b"", 1, 0), 3)
        with pytest.raises(IndexError):
            journal[len(journal)]

    simulate(scenario)


async def a_stopped_follower_costs_a_window(cluster: Cluster) -> None:
    await cluster.commit(b"x")
    await cluster.settle()
    leader, stopped = cluster.leader(), cluster.followers()[0]
    cluster.pause(stopped.id)
    for _ in range(400):
        await cluster.commit(bytes(KIB))
    waiting = leader.transport.buffered_bytes(stopped.id, Channel.BULK)
    assert waiting <= 2 * cluster.limits.inflight_bytes_max, waiting
    cluster.resume(stopped.id)
    await cluster.settle()
    await cluster.check_logs()


WINDOWED = Limits(
    segment_bytes=64 << 10, tail_cache_bytes_max=8 << 10, inflight_bytes_max=16 << 10,
)  # fmt: skip


def test_18_a_stopped_follower_costs_one_window() -> None:
    simulate(a_stopped_follower_costs_a_window, limits=WINDOWED)


def test_mutant_18_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication.Progress, "may_send", lambda self, window: not self.waiting)
    fails(a_stopped_follower_costs_a_window, limits=WINDOWED)


def test_18_writes_without_a_majority_are_refused() -> None:
    limits = Limits(
        batch_bytes_max=4 * KIB, uncommitted_bytes_max=64 * KIB, segment_bytes=1 << 20, tail_cache_bytes_max=8 * KIB
    )

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        leader = cluster.leader()
        for follower in cluster.followers():
            follower.disk.hung = cluster.loop.create_future()
        for _ in range(50):
            leader.propose(bytes(KIB))
        with pytest.raises(QuotaExceeded):
            leader.propose(bytes(16 * KIB))
        for follower in cluster.followers():
            hung, follower.disk.hung = follower.disk.hung, None
            assert hung is not None
            hung.set_result(None)
        await cluster.settle()
        await cluster.commit(b"and accepted again")
        assert leader.group().uncommitted_bytes == 0

    simulate(scenario, limits=limits)


def test_15_a_lone_write_waits_for_no_tick() -> None:
    """Two messages and two syncs: no step waits for a periodic timer."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        for _ in range(20):
            await cluster.run_for(cluster.rng.uniform(0.2, 0.5))
            begun = cluster.loop.time()
            position = await cluster.commit(b"y")
            assert cluster.loop.time() - begun < 0.02
            await cluster.until(lambda p=position: all(b.machine().index >= p.index for b in cluster.running), 0.02)

    simulate(scenario)
