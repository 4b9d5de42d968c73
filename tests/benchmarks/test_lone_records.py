"""The figures of the comparison of the two paths of a lone record, and that both paths are used."""

from __future__ import annotations

import pytest

from benchmarks.lone_records import TOPIC, Comparison, LoneRound, run_round, table
from tests.rpc.server.test_stream_server import streams_of
from tinymq.client.produce import blocking_sender
from tinymq.testing.cluster import Cluster

SENDS_MAX = 1000  # the connection opens in the background after a few of them


@pytest.mark.parametrize(
    ("direct", "looped", "pays"),
    [
        (LoneRound(0.89, 1.0), LoneRound(1.0, 1.0), True),
        (LoneRound(1.2, 0.8), LoneRound(1.0, 1.0), True),
        (LoneRound(0.91, 0.92), LoneRound(1.0, 1.0), False),
        (LoneRound(2.0, 2.0), LoneRound(1.0, 1.0), False),
    ],
)
def test_a_tenth_of_either_is_enough(direct: LoneRound, looped: LoneRound, pays: bool) -> None:
    comparison = Comparison.of([direct], [looped])
    assert comparison.pays == pays
    assert table(comparison, 1).row_count == 3


def test_medians_are_compared() -> None:
    rounds = [LoneRound(1.0, 9.0), LoneRound(2.0, 8.0), LoneRound(99.0, 1.0)]
    assert Comparison.of(rounds, rounds).direct == LoneRound(2.0, 8.0)


def test_a_round_is_sent_by_the_path_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking_sender, "LONE_RECORDS", True)  # restored after the test
    with Cluster(nodes=1) as cluster:
        client = cluster.client()
        client.admin.create_topic(TOPIC, partitions=1)
        streams = streams_of(cluster, 1)
        run_round(client, 2 * blocking_sender.LONE_SENDS_MIN, direct=False)
        assert len(streams._streams) == 1, "the loop's"
        for _ in range(SENDS_MAX):
            run_round(client, 1, direct=True)
            if len(streams._streams) == 2:
                break
        assert len(streams._streams) == 2, "the loop's, and the thread's"
