"""What a leader says of its followers and of what is on its way."""

from __future__ import annotations

from tests.raft.harness import Cluster, simulate


def test_the_lag_of_each_follower_and_the_bytes_that_are_not_committed() -> None:
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
        assert (slow.group().lags(), slow.group().uncommitted_bytes) == ({}, 0), "who does not lead knows of none"
        cluster.heal()
        await cluster.settle()
        assert set(cluster.leader().group().lags().values()) == {0}
        assert cluster.leader().group().uncommitted_bytes == 0

    simulate(scenario)
