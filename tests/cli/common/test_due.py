"""--delay and --deliver-at, and how long it is until then."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tinymq.base.errors import InvalidRequest
from tinymq.cli.common.due import left, parse_due

NOW = datetime(2026, 3, 1, 15, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("delay", "deliver_at", "due"),
    [
        (None, None, None),
        ("90", None, timedelta(seconds=90)),
        ("5m", None, timedelta(minutes=5)),
        ("1.5h", None, timedelta(hours=1.5)),
        ("30d", None, timedelta(days=30)),
        (None, "18:00", datetime(2026, 3, 1, 18, tzinfo=UTC)),
        (None, "15:00", datetime(2026, 3, 2, 15, tzinfo=UTC)),
        (None, "2026-04-01T12:00+02:00", datetime(2026, 4, 1, 10, tzinfo=UTC)),
        (None, "2026-04-01", datetime(2026, 4, 1, tzinfo=UTC)),
        (None, "1775000000.5", datetime.fromtimestamp(1_775_000_000.5, UTC)),
    ],
)
def test_when_records_are_due(delay: str | None, deliver_at: str | None, due: object) -> None:
    assert parse_due(delay, deliver_at, NOW) == due


@pytest.mark.parametrize(
    ("delay", "deliver_at", "says"),
    [
        ("soon", None, "not a duration"),
        ("5m", "18:00", "exclude"),
        (None, "tomorrow", "write 18:00"),
        (None, "-1h", "in the past"),
        (None, "25:00", "not a time"),
    ],
)
def test_what_is_no_time(delay: str | None, deliver_at: str | None, says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_due(delay, deliver_at, NOW)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "due"),
        (0.5, "due"),
        (1, "1s"),
        (59.9, "59s"),
        (60, "1m"),
        (310, "5m 10s"),
        (7200, "2h"),
        (7230, "2h"),
        (97_260, "1d 3h"),
        (2_592_000, "30d"),
    ],
)
def test_how_long_it_is(seconds: float, text: str) -> None:
    assert left(NOW + timedelta(seconds=seconds), NOW) == text
