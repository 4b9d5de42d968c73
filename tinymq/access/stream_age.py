"""How long a client's streams live: with TLS up to a bound, so that new certificates and authorities take effect, and
never longer than the proof of who the client is.

    opened → (notice) the broker asks the client to continue on another connection → (end) the broker ends the stream

The client ends a stream by itself once everything under way is answered, so that nothing of it is lost.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tinymq.access.stream_guard import StreamGuard

SPREAD = 0.2  # of a life: connections that were opened together do not end together
DRAIN, DRAIN_S_MIN = 0.1, 2.0  # of a life, after the notice, for what is under way; of a short life, the half
GRPC_SHARE = 0.5  # of a connection's age, that a stream of gRPC lives: see GRPC_AGE_SHARE
GRPC_AGE_SHARE = 0.3  # of a connection's age, after which gRPC begins no stream on it; it varies this by a tenth
GRPC_GRACE_SHARE = 0.65  # of a connection's age, for which the streams go on; with both: less than the age itself
EARLY_S = 30.0  # before the end of a proof, a client is asked to show another one
EARLY_S_MIN = 1.0  # a proof that ends sooner is not renewed in time
FAREWELL_S = 2.0  # after the end of a proof, for the answers that say so


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long one stream lives. math.inf: without a bound."""

    notice_s: float
    end_s: float


def lifetime_of(age_s_max: float, proof_left_s: float, spread: float) -> Lifetime:
    """How long a stream may live, by the age bound of its connection and the time until its proof ends. `spread`: 0 to
    1."""
    if math.isinf(age_s_max):
        notice_s = end_s = math.inf
    else:
        drain_s = min(age_s_max / 2, max(age_s_max * DRAIN, DRAIN_S_MIN))
        notice_s, end_s = (age_s_max - drain_s) * (1 - SPREAD * spread), age_s_max
    if proof_left_s < end_s:
        end_s = proof_left_s + FAREWELL_S
        early_s = max(proof_left_s / 2, proof_left_s - EARLY_S)
        notice_s = min(notice_s, early_s if early_s >= EARLY_S_MIN else math.inf)
    return Lifetime(notice_s, end_s)


async def serve_for(
    age_s_max: float, guard: StreamGuard, work: Coroutine[Any, Any, None], announce: Callable[[], None]
) -> None:
    """Do the work of a stream until it ends, or for as long as a stream may live. `announce` asks its client to
    continue on another connection."""
    lifetime = lifetime_of(age_s_max, guard.proof_left_s(), random.random())
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    notice = loop.call_later(lifetime.notice_s, announce) if math.isfinite(lifetime.notice_s) else None
    limit = asyncio.timeout_at(began_s + lifetime.end_s if math.isfinite(lifetime.end_s) else None)

    def lapsed() -> None:
        limit.reschedule(min(limit.when() or math.inf, loop.time() + FAREWELL_S))

    try:
        async with limit:
            guard.lapsed = lapsed
            await work
    except TimeoutError:
        if not limit.expired():
            raise
    finally:
        guard.lapsed = _ended
        if notice is not None:
            notice.cancel()


def _ended() -> None:
    """For a stream that has ended."""
