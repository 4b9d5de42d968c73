"""What a leader reports of its followers and of uncommitted entries."""

from __future__ import annotations

from tests.raft.harness import Cluster, simulate


def test_a_leader_reports_follower_lags_and_uncommitted_bytes() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        leader, (slow, other) = cluster.leader(), cluster.followers()
        group = leader.group()
        assert group.lags() == {slow.id: 0, other.id: 0}
        cluster.cut(leader.id, slow.id)
        for _ in range(3):
            await cluster.commit(b"behind")
        assert group.lags()[slow.id] == 3
        assert group.uncommitted_bytes == 0
        leader.propose(b"on its way" * 10)
        assert group.uncommitted_bytes > 100
        assert (slow.group().lags(), slow.group().uncommitted_bytes) == ({}, 0), (
            "a replica that does not lead reports none"
        )
        cluster.heal()
        await cluster.settle()
        assert set(cluster.leader().group().lags().values()) == {0}
        assert cluster.leader().group().uncommitted_bytes == 0

    simulate(scenario)
