"""Streams share the bound on waiting fetches."""

from __future__ import annotations

import pytest

from tinymq.base.errors import QuotaExceeded
from tinymq.broker.serve.fetch_waits import FetchShare, FetchWaits


class Wait:
    def __init__(self, share: FetchShare) -> None:
        self.ended = False
        self._share = share
        share.enter(self)

    def expire(self) -> None:
        self.ended = True
        self._share.leave(self)


def test_a_stream_with_fewer_waits_than_others_is_admitted() -> None:
    waits = FetchWaits(10)
    greedy, modest = waits.share(), waits.share()
    old = [Wait(greedy) for _ in range(10)]
    with pytest.raises(QuotaExceeded) as refused:
        Wait(greedy)
    assert refused.value.retriable
    assert refused.value.detail["retry_after_ms"]
    new = [Wait(modest) for _ in range(5)]
    assert [wait.ended for wait in old] == [True] * 5 + [False] * 5, "the oldest waits end early"
    assert (len(waits), len(greedy), len(modest)) == (10, 5, 5)
    for share in (greedy, modest):
        with pytest.raises(QuotaExceeded):
            Wait(share)
    for wait in (*old[5:], *new):
        wait.expire()
    assert (len(waits), len(greedy), len(modest)) == (0, 0, 0)
    Wait(greedy)
