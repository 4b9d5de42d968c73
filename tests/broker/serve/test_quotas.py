"""Quotas in bytes: the delay for each client, on a clock that the test moves."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.manual_clock import ManualClock
from tinymq.base.config import Limits
from tinymq.base.errors import InvalidConfig, QuotaExceeded
from tinymq.broker.serve.quotas import CLIENT_CHARS_MAX, CLIENTS_MAX, WAIT_S_MAX, Quotas, Rate


def test_a_quiet_client_has_a_second_of_its_rate() -> None:
    rate = Rate(ManualClock(), 1000)
    assert [rate.charge("a", 250) for _ in range(4)] == [0.0] * 4
    assert rate.charge("a", 500) == pytest.approx(0.5)
    assert rate.charge("a", 500) == pytest.approx(1.0)


def test_the_rate_is_kept_over_time() -> None:
    clock = ManualClock()
    rate = Rate(clock, 1000)
    sent, began_s = 0, clock.monotonic()
    while clock.monotonic() < began_s + 60:
        wait_s = rate.charge("a", 700)
        sent += 700
        clock.advance(wait_s)
    took_s = clock.monotonic() - began_s
    assert 1000 * took_s <= sent <= 1000 * took_s + 1000 + 700, "the rate, the burst, and one batch"


def test_time_fills_a_bucket_to_the_burst_and_no_further() -> None:
    clock = ManualClock()
    rate = Rate(clock, 1000)
    rate.charge("a", 1000)
    clock.advance(3600)
    assert rate.charge("a", 1000) == 0.0
    assert rate.charge("a", 1) > 0.0


def test_clients_do_not_wait_for_each_other() -> None:
    rate = Rate(ManualClock(), 1000)
    assert rate.charge("greedy", 20_000) == pytest.approx(19.0)
    assert rate.charge("modest", 1000) == 0.0
    assert rate.owed_s("modest") == 0.0


def test_one_huge_batch_waits_for_a_bounded_time() -> None:
    clock = ManualClock()
    rate = Rate(clock, 1)
    assert rate.charge("a", 8 << 20) == WAIT_S_MAX
    clock.advance(WAIT_S_MAX)
    assert rate.owed_s("a") == 0.0


def test_without_a_quota_no_client_is_stored() -> None:
    quotas = Quotas(ManualClock(), Limits())
    assert quotas.produce.charge("a", 1 << 40) == quotas.fetch.owed_s("a") == 0.0
    assert len(quotas.produce) == len(quotas.fetch) == 0


def test_the_number_of_stored_clients_is_bounded() -> None:
    rate = Rate(ManualClock(), 1000)
    rate.charge("first", 5000)
    rate.charge("second", 5000)
    for number in range(CLIENTS_MAX - 2):
        rate.charge(f"client {number}", 1)
    rate.owed_s("first")  # seen again
    rate.charge("one more", 1)
    assert len(rate) == CLIENTS_MAX
    assert rate.owed_s("first") > 0
    assert rate.owed_s("second") == 0.0, "forgotten"
    assert rate.share("x" * 10_000)._client == "x" * CLIENT_CHARS_MAX


def test_a_call_waits_or_gets_the_delay() -> None:
    async def main() -> None:
        clock = ManualClock()
        rate = Rate(clock, 1000)
        delays: list[float] = []
        rate.throttled = delays.append
        share = rate.share("a")
        await share.admit(3000, 0.0)
        with pytest.raises(QuotaExceeded) as refused:
            await share.admit(10, 1.9)
        assert refused.value.detail == {"retry_after_ms": "2001"}
        waiting = asyncio.ensure_future(share.admit(500, 2.1))
        await asyncio.sleep(0)
        clock.advance(1.9)
        await asyncio.sleep(0)
        assert not waiting.done()
        clock.advance(0.2)
        await waiting
        assert delays == [pytest.approx(2.0)]
        assert rate.owed_s("a") == pytest.approx(0.4), "a refused request uses no quota"

    asyncio.run(main())


def test_the_settings() -> None:
    with pytest.raises(InvalidConfig, match="client_produce_bytes_per_s"):
        Limits(client_produce_bytes_per_s=-1)
    quotas = Quotas(ManualClock(), Limits(client_produce_bytes_per_s=10, client_fetch_bytes_per_s=20))
    assert quotas.produce.charge("a", 20) == pytest.approx(1.0)
    assert quotas.fetch.charge("a", 30) == pytest.approx(0.5)


def test_delays_are_reported_with_their_direction() -> None:
    async def main() -> None:
        clock = ManualClock()
        quotas = Quotas(clock, Limits(client_produce_bytes_per_s=10, client_fetch_bytes_per_s=20))
        delays: list[tuple[str, float]] = []
        quotas.tell(lambda direction, wait_s: delays.append((direction, wait_s)))
        waits = [asyncio.ensure_future(rate.wait(s)) for rate, s in ((quotas.produce, 1.0), (quotas.fetch, 2.0))]
        await asyncio.sleep(0)
        clock.advance(2)
        await asyncio.gather(*waits)
        assert delays == [("produce", 1), ("fetch", 2)]

    asyncio.run(main())
