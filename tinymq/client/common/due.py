"""When a delayed record is due, as an application says it. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from tinymq.base.errors import InvalidRequest
from tinymq.base.value import value
from tinymq.client.common.config import Acks
from tinymq.client.common.values import as_datetime, check_timestamp

Delay = timedelta | float
"""How long after it is stored a record is delivered: a timedelta, or seconds."""

DELAY_MAX = timedelta(days=30)
DELAY_MIN = timedelta(seconds=1)
DELAY_HINT = "pass a timedelta or seconds, from 1 s to 30 days; without it, the record is delivered at once"
_MICROSECOND = timedelta(microseconds=1)


@value
class Due:
    """The time at which a record is due, or how long after it is stored, in microseconds. One of the two is None."""

    deliver_at_us: int | None
    delay_us: int | None

    @property
    def delay(self) -> timedelta | None:
        return None if self.delay_us is None else timedelta(microseconds=self.delay_us)

    @property
    def deliver_at(self) -> datetime | None:
        return None if self.deliver_at_us is None else as_datetime(self.deliver_at_us)


def check_due(delay: object, deliver_at: object, acks: Acks) -> Due:
    """Return when a record is due, of which one of the first two arguments is given. Raises InvalidRequest.

    How far ahead `deliver_at` may be is checked by the partition's leader alone, because its clock decides.
    """
    if acks != "quorum":
        raise InvalidRequest(
            f"a delayed record needs acks='quorum', not {acks!r}", hint="send it by another producer, or by mq.send"
        )
    if delay is not None and deliver_at is not None:
        raise InvalidRequest("delay and deliver_at exclude one another")
    if delay is not None:
        return Due(None, _microseconds(delay))
    if not isinstance(deliver_at, datetime):
        raise InvalidRequest(
            f"deliver_at={deliver_at!r} is {type(deliver_at).__name__}, not datetime",
            hint="pass a datetime with a zone, or delay= in seconds",
        )
    return Due(max(0, check_timestamp(deliver_at)), None)


def _microseconds(delay: object) -> int:
    if isinstance(delay, int | float) and not isinstance(delay, bool):
        in_range = DELAY_MIN.total_seconds() <= delay <= DELAY_MAX.total_seconds()  # NaN is not
        delay = timedelta(seconds=delay) if in_range else delay
    if isinstance(delay, timedelta) and DELAY_MIN <= delay <= DELAY_MAX:
        return delay // _MICROSECOND
    raise InvalidRequest(f"delay={delay!r}", hint=DELAY_HINT)
