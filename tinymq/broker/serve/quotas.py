"""Rates per client or user: how long each one has to wait. Pure except for the clock.

A client has a bucket of one second's bytes, refilled at its rate. The bytes that it sends or receives are taken out, no
matter how many. A bucket below zero is a debt, and its client waits until the debt is paid. No other client waits. A
client chooses its own name, so its quota shares a broker among cooperating clients and does not keep an attacker out.
While callers are checked, all clients of one user share a quota, and each user may have a quota of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from tinymq.base.clock import Clock, SystemClock
from tinymq.base.config import Limits
from tinymq.base.errors import QuotaExceeded
from tinymq.base.identity.quota import NONE, PRODUCER_IDS_PER_H, Quota

BURST_S = 1.0  # seconds of its rate that a client may use at once after a pause
WAIT_S_MAX = 30.0  # a debt above this is forgiven, so a batch of any size costs at most this wait
CLIENTS_MAX = 10_000  # remembered clients; the least recent one is forgotten, and starts with a full bucket
CLIENT_CHARS_MAX = 249
HOUR_S = 3600.0


class _Bucket:
    __slots__ = ("at_s", "level")

    def __init__(self, level: float, at_s: float) -> None:
        self.level = level  # bytes; below 0: a debt
        self.at_s = at_s  # monotonic time at which `level` was true


OwnRate = Callable[[str], float | None]
"""Returns the rate of a client by its name; None: that of every client."""


def bounded(level: float, bytes_per_s: float) -> float:
    """Limit the debt of a bucket to the bytes of WAIT_S_MAX."""
    return max(level, -WAIT_S_MAX * bytes_per_s)


class Rate:
    """The quota of each client in one direction."""

    def __init__(
        self, clock: Clock, bytes_per_s: int, own: OwnRate = lambda client: None, requests: Rate | None = None
    ) -> None:
        """`bytes_per_s` of every client without a rate of its `own`. 0: there is no quota, and no client is remembered.
        Each charge counts as one of the `requests`, too."""
        self._clock = clock
        self.bytes_per_s = bytes_per_s
        self._own = own
        self._requests = requests
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()  # the most recent last
        self.throttled: Callable[[float], None] = lambda wait_s: None  # called for every wait, for the metrics

    def __len__(self) -> int:
        return len(self._buckets)

    def share(self, client: str) -> ClientQuota:
        """One client's quota, for as long as its stream or call lasts."""
        return ClientQuota(self, client[:CLIENT_CHARS_MAX])

    def owed_s(self, client: str) -> float:
        """The seconds that `client` would have to wait before it is served."""
        asked_s = self._requests.owed_s(client) if self._requests is not None else 0.0
        per_s = self.rate_of(client)
        return max(asked_s, -self._bucket(client, per_s).level / per_s) if per_s else asked_s

    def rate_of(self, client: str) -> float:
        """The rate of a client; 0: without a bound."""
        own = self._own(client)
        return self.bytes_per_s if own is None else own

    def limits(self, client: str) -> bool:
        """Is there a bound for this client?"""
        return self.rate_of(client) > 0 or (self._requests is not None and self._requests.limits(client))

    def charge(self, client: str, size: int) -> float:
        """Take `size` bytes from the bucket, and return the seconds that `client` has to wait afterwards."""
        asked_s = self._requests.charge(client, 1) if self._requests is not None else 0.0
        per_s = self.rate_of(client)
        if not per_s:
            return asked_s
        bucket = self._bucket(client, per_s)
        bucket.level = bounded(bucket.level - size, per_s)
        return max(asked_s, -bucket.level / per_s)

    def _bucket(self, client: str, per_s: float) -> _Bucket:
        """The client's bucket, refilled up to now."""
        now_s = self._clock.monotonic()
        full = BURST_S * per_s
        bucket = self._buckets.get(client)
        if bucket is None:
            bucket = self._buckets[client] = _Bucket(full, now_s)
            if len(self._buckets) > CLIENTS_MAX:
                self.forget_oldest()
        else:
            self._buckets.move_to_end(client)
        bucket.level = min(full, bucket.level + (now_s - bucket.at_s) * per_s)
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


class ClientQuota:
    """One client's quota."""

    __slots__ = ("_client", "_rate")

    def __init__(self, rate: Rate, client: str) -> None:
        self._rate = rate
        self._client = client

    @property
    def limited(self) -> bool:
        """Whether there is a quota. If not, the caller need not count bytes."""
        return self._rate.limits(self._client)

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
                f"client {self._client!r} is over its quota for {owed_s:.1f} s more",
                retry_after_ms=retry_after_ms,
            )
        # Charged before the wait: calls that arrive meanwhile see this debt, too.
        self._rate.charge(self._client, size)
        await self._rate.wait(owed_s)


QuotaOf = Callable[[str], Quota]
"""Returns the quota of a client or user by its name."""


class NewProducerIds:
    """Producer ids that are new to a partition, by the user who brings them: a partition remembers a number of
    producers for all (PRODUCERS_MAX), and invented ids would push out those of others."""

    def __init__(self, clock: Clock, quota_of: QuotaOf) -> None:
        self._clock = clock
        self._quota_of = quota_of
        self._seen: OrderedDict[tuple[str, object], _Bucket] = OrderedDict()  # by user and partition; ids left

    def admit(self, name: str, partition: object) -> None:
        """Count one more id. Raises QuotaExceeded, and counts nothing, if the user has used up its bound."""
        own = self._quota_of(name).producer_ids_per_h
        per_h = PRODUCER_IDS_PER_H if own is None else own
        now_s = self._clock.monotonic()
        bucket = self._seen.setdefault((name, partition), _Bucket(per_h, now_s))
        self._seen.move_to_end((name, partition))
        if len(self._seen) > CLIENTS_MAX:
            self._seen.popitem(last=False)
        bucket.level = min(per_h, bucket.level + (now_s - bucket.at_s) * per_h / HOUR_S)
        bucket.at_s = now_s
        if bucket.level < 1:
            wait_s = (1 - bucket.level) * HOUR_S / per_h
            raise QuotaExceeded(
                f"{name!r} has brought {per_h} new producer ids to {partition} within an hour",
                hint="keep a producer open for many records",
                retry_after_ms=int(wait_s * 1000) + 1,
            )
        bucket.level -= 1


UNLIMITED = Rate(SystemClock(), 0).share("")


class Quotas:
    """The quotas of one broker: bytes in both directions, and a user's requests per second."""

    def __init__(self, clock: Clock, limits: Limits, quota_of: QuotaOf = lambda name: NONE) -> None:
        self.requests = Rate(clock, 0, lambda name: quota_of(name).requests_per_s)
        self.produce = Rate(
            clock, limits.client_produce_bytes_per_s, lambda name: quota_of(name).produce_bytes_per_s, self.requests
        )
        self.fetch = Rate(
            clock, limits.client_fetch_bytes_per_s, lambda name: quota_of(name).fetch_bytes_per_s, self.requests
        )
        self.producer_ids = NewProducerIds(clock, quota_of)

    def admit_call(self, name: str) -> None:
        """Count one call of a user. Raises QuotaExceeded, and counts nothing, if the user has to wait."""
        if not self.requests.limits(name):
            return
        owed_s = self.requests.owed_s(name)
        if owed_s > 0:
            raise QuotaExceeded(
                f"{name!r} is over its requests per second for {owed_s:.1f} s more",
                retry_after_ms=int(owed_s * 1000) + 1,
            )
        self.requests.charge(name, 1)

    def tell(self, throttled: Callable[[str, float], None]) -> None:
        """Call `throttled` for every wait from now on, with the direction ("produce", "fetch") and the seconds."""
        self.produce.throttled = partial(throttled, "produce")
        self.fetch.throttled = partial(throttled, "fetch")
