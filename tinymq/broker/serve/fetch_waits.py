"""Bounds how many fetches wait on one broker, over all streams and partitions, and shares the bound among the streams.

At the bound, a further fetch of the stream with the most waiting fetches is refused. A fetch of any other stream may
wait; in exchange, the oldest wait of the largest stream ends early, and is answered with the records that there are.
"""

from __future__ import annotations

from typing import Protocol

from tinymq.base.errors import QuotaExceeded

RETRY_AFTER_MS = 500


class WaitingFetch(Protocol):
    """A fetch that waits."""

    def expire(self) -> None:
        """End the wait now. Calls `FetchShare.leave`."""
        ...


class FetchWaits:
    """The waiting fetches of one broker."""

    def __init__(self, fetches_max: int) -> None:
        self._fetches_max = fetches_max
        self._shares: dict[FetchShare, None] = {}  # those with waiting fetches; a replay needs the same order
        self._count = 0  # invariant: the sum of the shares' lengths

    def __len__(self) -> int:
        return self._count

    def share(self) -> FetchShare:
        """The share of one stream."""
        return FetchShare(self)

    def make_room(self, share: FetchShare) -> None:
        """Let one more fetch of `share` wait. Raises QuotaExceeded."""
        if self._count < self._fetches_max:
            return
        largest = max(self._shares, key=len)
        if len(share) >= len(largest):
            raise QuotaExceeded(
                f"{self._count} fetches wait on this broker, {len(share)} of them on this stream",
                hint="read fewer partitions at a time, or raise waiting_fetches_max",
                retry_after_ms=RETRY_AFTER_MS,
            )
        largest.oldest().expire()

    def entered(self, share: FetchShare) -> None:
        self._count += 1
        self._shares[share] = None

    def left(self, share: FetchShare) -> None:
        self._count -= 1
        if not len(share):
            del self._shares[share]


class FetchShare:
    """The waiting fetches of one stream, the oldest first."""

    def __init__(self, waits: FetchWaits) -> None:
        self._waits = waits
        self._fetches: dict[WaitingFetch, None] = {}

    def __len__(self) -> int:
        return len(self._fetches)

    def enter(self, fetch: WaitingFetch) -> None:
        """Let `fetch` wait until it calls `leave`. Raises QuotaExceeded if it may not wait."""
        self._waits.make_room(self)
        self._fetches[fetch] = None
        self._waits.entered(self)

    def leave(self, fetch: WaitingFetch) -> None:
        """The wait is over."""
        del self._fetches[fetch]
        self._waits.left(self)

    def oldest(self) -> WaitingFetch:
        return next(iter(self._fetches))
