"""The benchmark of the client's processor time: its figures, and that each of its rounds runs."""

from __future__ import annotations

import pytest

from benchmarks.client_cpu import WORKLOADS, Compared, table
from benchmarks.client_cpu_rounds import LONE_SHARE, Rounds
from tinymq.testing.cluster import Cluster

RECORDS = 2 * LONE_SHARE


def test_rounds_are_compared_in_pairs() -> None:
    compared = Compared([100.0, 300.0, 100.0], [200.0, 300.0, 400.0])
    assert compared.ratio == 0.5
    assert Compared([100.0], []).ratio is None
    assert table({"send": compared, "poll": Compared([1.0], [])}).row_count == 2


@pytest.mark.long
def test_each_workload_is_a_round() -> None:
    with Cluster(nodes=1) as cluster:
        rounds = Rounds(cluster.servers, RECORDS)
        try:
            for name in WORKLOADS:
                ns, records = getattr(rounds, name)(RECORDS)
                assert ns > 0, name
                assert 0 < records <= 5 * RECORDS, name
        finally:
            rounds.close()
