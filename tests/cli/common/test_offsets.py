"""Start positions as written on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tinymq.base.errors import InvalidRequest
from tinymq.base.types import Offset
from tinymq.cli.common.offsets import Last, parse_start


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("start", "earliest"),
        ("end", "latest"),
        ("0", Offset(0)),
        ("42", Offset(42)),
        ("-10", Last(10)),
        ("@2026-01-01T00:00Z", datetime(2026, 1, 1, tzinfo=UTC)),
        ("@2026-01-01", datetime(2026, 1, 1, tzinfo=UTC)),
        ("@2026-01-01T02:00+02:00", datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))),
        ("@0", datetime(1970, 1, 1, tzinfo=UTC)),
        ("@1767225600.5", datetime(2026, 1, 1, microsecond=500_000, tzinfo=UTC)),
    ],
)
def test_parse_start(text: str, start: object) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize("text", ["", "-", "--1", "1.5", "tomorrow", "@", "@yesterday", "@inf", "٣", "+1", "@1e400"])
def test_a_malformed_start_position_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_start(text)
    assert "start, end" in raised.value.hint
