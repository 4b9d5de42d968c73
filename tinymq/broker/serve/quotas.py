"""Byte-rate quotas per client: how long each client has to wait. Pure except for the clock.

A client has a bucket of one second's bytes, refilled at its rate. The bytes that it sends or receives are taken out, no
matter how many. A bucket below zero is a debt, and its client waits until the debt is paid. No other client waits. A
client chooses its own name, so quotas share a broker among cooperating clients and do not keep an attacker out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from tinymq.base.clock import Clock, SystemClock
from tinymq.base.config import Limits
from tinymq.base.errors import QuotaExceeded

BURST_S = 1.0  # seconds of its rate that a client may use at once after a pause
WAIT_S_MAX = 30.0  # a debt above this is forgiven, so a batch of any size costs at most this wait
CLIENTS_MAX = 10_000  # remembered clients; the least recent one is forgotten, and starts with a full bucket
CLIENT_CHARS_MAX = 249


class _Bucket:
    __slots__ = ("at_s", "level")

    def __init__(self, level: float, at_s: float) -> None:
        self.level = level  # bytes; below 0: a debt
        self.at_s = at_s  # monotonic time at which `level` was true


def bounded(level: float, bytes_per_s: int) -> float:
    """Limit the debt of a bucket to the bytes of WAIT_S_MAX."""
    return max(level, -WAIT_S_MAX * bytes_per_s)


class Rate:
    """The quota of each client in one direction."""

    def __init__(self, clock: Clock, bytes_per_s: int) -> None:
        """`bytes_per_s` 0: there is no quota, and no client is remembered."""
        self._clock = clock
        self.bytes_per_s = bytes_per_s
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()  # the most recent last
        self.throttled: Callable[[float], None] = lambda wait_s: None  # called for every wait, for the metrics

    def __len__(self) -> int:
        return len(self._buckets)

    def share(self, client: str) -> Share:
        """One client's quota, for as long as its stream or call lasts."""
        return Share(self, client[:CLIENT_CHARS_MAX])

    def owed_s(self, client: str) -> float:
        """The seconds that `client` would have to wait before it is served."""
        return max(0.0, -self._bucket(client).level / self.bytes_per_s) if self.bytes_per_s else 0.0

    def charge(self, client: str, size: int) -> float:
        """Take `size` bytes from the bucket, and return the seconds that `client` has to wait afterwards."""
        if not self.bytes_per_s:
            return 0.0
        bucket = self._bucket(client)
        bucket.level = bounded(bucket.level - size, self.bytes_per_s)
        return max(0.0, -bucket.level / self.bytes_per_s)

    def _bucket(self, client: str) -> _Bucket:
        """The client's bucket, refilled up to now."""
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
        """Sleep for the wait that `charge` returned."""
        if wait_s > 0:
            self.throttled(wait_s)
            await self._clock.sleep(wait_s)


class Share:
    """One client's quota."""

    __slots__ = ("_client", "_rate")

    def __init__(self, rate: Rate, client: str) -> None:
        self._rate = rate
        self._client = client

    @property
    def limited(self) -> bool:
        """Whether there is a quota. If not, the caller need not count bytes."""
        return self._rate.bytes_per_s > 0

    def charge(self, size: int) -> float:
        """As `Rate.charge`."""
        return self._rate.charge(self._client, size)

    async def wait(self, wait_s: float) -> None:
        """As `Rate.wait`."""
        await self._rate.wait(wait_s)

    async def admit(self, size: int, within_s: float) -> None:
        """Wait until the present debt is paid, then take `size` bytes.

        Raises QuotaExceeded, and takes nothing, if the wait would exceed `within_s`.
        """
        owed_s = self._rate.owed_s(self._client)
        if owed_s > within_s:
            retry_after_ms = int(owed_s * 1000) + 1
            raise QuotaExceeded(
                f"client {self._client!r} is over its bytes per second for {owed_s:.1f} s more",
                retry_after_ms=retry_after_ms,
            )
        # Charged before the wait: calls that arrive meanwhile see this debt, too.
        self._rate.charge(self._client, size)
        await self._rate.wait(owed_s)


UNLIMITED = Rate(SystemClock(), 0).share("")


class Quotas:
    """Both directions of one broker."""

    def __init__(self, clock: Clock, limits: Limits) -> None:
        self.produce = Rate(clock, limits.client_produce_bytes_per_s)
        self.fetch = Rate(clock, limits.client_fetch_bytes_per_s)

    def tell(self, throttled: Callable[[str, float], None]) -> None:
        """Call `throttled` for every wait from now on, with the direction ("produce", "fetch") and the seconds."""
        self.produce.throttled = partial(throttled, "produce")
        self.fetch.throttled = partial(throttled, "fetch")
