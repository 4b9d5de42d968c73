"""When a delayed record is due, as an application says it, and what is refused before anything is sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tinymq.base.errors import InvalidRequest
from tinymq.client.common.due import Due, check_due


@pytest.mark.parametrize(
    ("delay", "microseconds"),
    [
        (1, 1_000_000),
        (1.5, 1_500_000),
        (timedelta(days=30), 2_592_000_000_000),
        (30 * 86_400, 2_592_000_000_000),
        (timedelta(seconds=2, microseconds=1), 2_000_001),
    ],
)
def test_delays(delay: object, microseconds: int) -> None:
    assert check_due(delay, None, "quorum") == Due(None, microseconds)


def test_times() -> None:
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    there = noon.astimezone(timezone(timedelta(hours=5)))
    microseconds = int(noon.timestamp()) * 1_000_000
    assert check_due(None, noon, "quorum") == check_due(None, there, "quorum") == Due(microseconds, None)
    before_1970 = datetime(1900, 1, 1, tzinfo=UTC)
    assert check_due(None, before_1970, "quorum") == Due(0, None), "it has passed: due at once"
    far = datetime(2999, 1, 1, tzinfo=UTC)
    assert check_due(None, far, "quorum").deliver_at_us, "the leader's clock says what is too far"


@pytest.mark.parametrize(
    ("delay", "deliver_at", "acks", "says"),
    [
        (0, None, "quorum", "from 1 s to 30 days"),
        (0.999, None, "quorum", "from 1 s"),
        (-5, None, "quorum", "from 1 s"),
        (float("nan"), None, "quorum", "from 1 s"),
        (float("inf"), None, "quorum", "from 1 s"),
        (timedelta(days=30, microseconds=1), None, "quorum", "30 days"),
        (True, None, "quorum", "delay=True"),
        ("5m", None, "quorum", "delay='5m'"),
        (None, datetime(2030, 1, 1), "quorum", "without a zone"),
        (None, 1_900_000_000, "quorum", "pass a datetime with a zone"),
        (5, datetime(2030, 1, 1, tzinfo=UTC), "quorum", "exclude one another"),
        (5, None, "leader", "acks='quorum', not 'leader'"),
        (5, None, "none", "acks='quorum'"),
    ],
)
def test_what_is_refused(delay: object, deliver_at: object, acks: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_due(delay, deliver_at, acks)  # type: ignore[arg-type]
    assert says in str(refused.value)
