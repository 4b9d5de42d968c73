"""Settings with units: parsed into numbers and shown again."""

from __future__ import annotations

import pytest

from tinymq.base import topic_config
from tinymq.base.errors import InvalidConfig, InvalidRequest
from tinymq.cli.common.units import parse_seconds, parse_settings, show

WRITTEN = [
    ("retention_ms=7d", "604800000", "7d"),
    ("retention_ms=12h", "43200000", "12h"),
    ("retention_ms=90m", "5400000", "90m"),
    ("retention_ms=36h", "129600000", "36h"),
    ("retention_ms=24h", "86400000", "1d"),
    ("retention_ms=1w", "604800000", "7d"),
    ("retention_ms=1.5h", "5400000", "90m"),
    ("max_bytes=1.5GiB", str(3 << 29), "1.5GiB"),
    ("max_bytes=1100MB", "1100000000", "1.1GB"),
    ("max_bytes=1100MiB", str(1100 << 20), "1100MiB"),
    ("max_bytes=2560", "2560", "2.5KiB"),
    ("max_bytes=999", "999", "999B"),
    ("max_bytes=1001", "1001", "1001B"),
    ("segment_ms=10s", "10000", "10s"),
    ("sync=500ms", "500", "500ms"),
    ("sync=always", "always", "always"),
    ("retention_ms=1500", "1500", "1.5s"),
    ("retention_bytes=1GiB", str(1 << 30), "1GiB"),
    ("max_bytes=10MB", "10000000", "10MB"),
    ("max_bytes=64KiB", "65536", "64KiB"),
    ("max_records=1000", "1000", "1000"),
    ("max_bytes=none", "none", "none"),
    ("on_full=drop_oldest", "drop_oldest", "drop_oldest"),
]


@pytest.mark.parametrize(("text", "value", "shown"), WRITTEN)
def test_values_with_units_are_parsed_and_shown_again(text: str, value: str, shown: str) -> None:
    name = text.partition("=")[0]
    assert parse_settings([text]) == {name: value}
    assert show(name, value) == shown


@pytest.mark.parametrize(
    "texts",
    [
        ["retention_ms"], ["=5"], ["retention_ms="], ["retention_ms=5y"], ["retention_ms=1h30m"],
        ["retention_ms=0.0001s"], ["retention_ms=1GiB"], ["max_bytes=5d"],
        ["max_bytes=1gib"], ["sync=1h", "sync=2h"],
    ],
)  # fmt: skip
def test_a_malformed_setting_is_refused_with_a_hint(texts: list[str]) -> None:
    with pytest.raises(InvalidConfig) as raised:
        parse_settings(texts)
    assert raised.value.hint


@pytest.mark.parametrize("text", ["max_records=5k", "retention_ms=1.5", "storage=5d", f"max_bytes={'9' * 50}B"])
def test_a_value_without_a_unit_is_passed_on_unchanged(text: str) -> None:
    settings = parse_settings([text])
    assert "=".join(*settings.items()) == text
    with pytest.raises(InvalidConfig):
        topic_config.make(settings.items())


def test_a_setting_given_twice_is_refused_with_a_hint() -> None:
    with pytest.raises(InvalidConfig, match="twice") as raised:
        parse_settings(["sync=1h", "sync=2h"])
    assert "docs/topics.md" in raised.value.hint


def test_every_default_is_parsed_in_the_form_that_is_shown() -> None:
    config = topic_config.make()
    shown = [f"{name}={show(name, value)}" for name, value in config.settings()]
    assert topic_config.make(parse_settings(shown).items()) == config


def test_durations() -> None:
    assert [parse_seconds(text) for text in ("90", "90s", "15m", "1.5h", "500ms")] == [90, 90, 900, 5400, 0.5]
    for wrong in ("", "s", "1y", "1h30m", "-5s", "5 s", "1" * 30, "१s"):
        with pytest.raises(InvalidRequest):
            parse_seconds(wrong)
