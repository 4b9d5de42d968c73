"""Flow control by bytes per client: how long each has to wait. Pure but for the clock it is given.

A client has a bucket of one second's bytes, refilled at its rate. What it sends or is sent is taken out, however large
it is; a bucket below empty is a debt, and its client waits until that is paid. Nobody else waits for it. Who a client
is, it says itself: this shares a broker among friends, and keeps no enemy out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from tinymq.base.clock import Clock, SystemClock
from tinymq.base.config import Limits
from tinymq.base.errors import QuotaExceeded

BURST_S = 1.0  # of its rate, that a client which was quiet may take at once
WAIT_S_MAX = 30.0  # a debt beyond this is let go: one batch of any size is taken in this time
CLIENTS_MAX = 10_000  # remembered; the one not seen for longest is forgotten, and may begin anew
CLIENT_CHARS_MAX = 249


class _Bucket:
    __slots__ = ("at_s", "level")

    def __init__(self, level: float, at_s: float) -> None:
        self.level = level  # bytes; below 0: a debt
        self.at_s = at_s  # when that was the level


def bounded(level: float, bytes_per_s: int) -> float:
    """Return the level of a bucket without the debt that takes longer than WAIT_S_MAX to pay."""
    return max(level, -WAIT_S_MAX * bytes_per_s)


class Rate:
    """The quota of each client in one direction."""

    def __init__(self, clock: Clock, bytes_per_s: int) -> None:
        """`bytes_per_s` 0: none, and nothing is remembered."""
        self._clock = clock
        self.bytes_per_s = bytes_per_s
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()  # the one used last at the end
        self.throttled: Callable[[float], None] = lambda wait_s: None  # told of every wait, for the metrics

    def __len__(self) -> int:
        return len(self._buckets)

    def share(self, client: str) -> Share:
        """One client's quota, for as long as its stream or call lasts."""
        return Share(self, client[:CLIENT_CHARS_MAX])

    def owed_s(self, client: str) -> float:
        """How long `client` would have to wait before it is served."""
        return max(0.0, -self._bucket(client).level / self.bytes_per_s) if self.bytes_per_s else 0.0

    def charge(self, client: str, size: int) -> float:
        """Take `size` bytes; the seconds that `client` has to wait afterwards."""
        if not self.bytes_per_s:
            return 0.0
        bucket = self._bucket(client)
        bucket.level = bounded(bucket.level - size, self.bytes_per_s)
        return max(0.0, -bucket.level / self.bytes_per_s)

    def _bucket(self, client: str) -> _Bucket:
        """As it is now: refilled."""
        now_s = self._clock.monotonic()
        full = BURST_S * self.bytes_per_s
        bucket = self._buckets.get(client)
        if bucket is None:
            bucket = self._buckets[client] = _Bucket(full, now_s)
            if len(self._buckets) > CLIENTS_MAX:
                self.forget_oldest()
        else:
            self._buckets.move_to_end(client)
        bucket.level = min(full, bucket.level + (now_s - bucket.at_s) * self.bytes_per_s)
        bucket.at_s = now_s
        return bucket

    def forget_oldest(self) -> None:
        """Forget the client that was not seen for the longest time."""
        self._buckets.popitem(last=False)

    async def wait(self, wait_s: float) -> None:
        """Let a client wait as long as `charge` said."""
        if wait_s > 0:
            self.throttled(wait_s)
            await self._clock.sleep(wait_s)


class Share:
    """One client's part in a rate."""

    __slots__ = ("_client", "_rate")

    def __init__(self, rate: Rate, client: str) -> None:
        self._rate = rate
        self._client = client

    @property
    def limited(self) -> bool:
        """Is there a quota at all? Whoever asks may spare itself the counting."""
        return self._rate.bytes_per_s > 0

    def charge(self, size: int) -> float:
        """As `Rate.charge`."""
        return self._rate.charge(self._client, size)

    async def wait(self, wait_s: float) -> None:
        """As `Rate.wait`."""
        await self._rate.wait(wait_s)

    async def admit(self, size: int, within_s: float) -> None:
        """Wait for what was taken before, and take `size`. Raises QuotaExceeded when that would take too long; nothing
        is taken then."""
        owed_s = self._rate.owed_s(self._client)
        if owed_s > within_s:
            retry_after_ms = int(owed_s * 1000) + 1
            raise QuotaExceeded(
                f"client {self._client!r} is over its bytes per second for {owed_s:.1f} s more",
                retry_after_ms=retry_after_ms,
            )
        self._rate.charge(self._client, size)
        await self._rate.wait(owed_s)


UNLIMITED = Rate(SystemClock(), 0).share("")


class Quotas:
    """Both directions of one broker."""

    def __init__(self, clock: Clock, limits: Limits) -> None:
        self.produce = Rate(clock, limits.client_produce_bytes_per_s)
        self.fetch = Rate(clock, limits.client_fetch_bytes_per_s)

    def tell(self, throttled: Callable[[str, float], None]) -> None:
        """Call `throttled` with the direction, produce or fetch, and the seconds, for every wait from now on."""
        self.produce.throttled = partial(throttled, "produce")
        self.fetch.throttled = partial(throttled, "fetch")
