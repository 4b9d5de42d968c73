"""A topic's settings: refusals, alterations, and their description for people."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinymq.base.errors import InvalidConfig
from tinymq.base.topic_config import SETTINGS, Storage, TopicConfig, make, promise
from tinymq.cli.common.units import show

PAGE = Path(__file__).parents[1] / "docs/topics.md"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ([("storage", "memory")], "max_bytes"),
        ([("storage", "memory"), ("max_bytes", "1000"), ("sync", "100")], "never synced"),
        ([("storage", "tape")], "disk or memory"),
        ([("sync", "0")], "sync=always"),
        ([("sync", "60001")], "sync, in milliseconds, is between 0 and 60000"),
        ([("sync", "always"), ("sync", "100")], "docs/topics.md"),
        ([("synk", "always")], "'sync'"),
    ],
)
def test_invalid_values_are_refused_with_the_valid_ones(settings: list[tuple[str, str]], why: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        make(settings)
    assert why in str(raised.value)


def test_a_duration_with_a_unit_is_told_what_the_setting_counts() -> None:
    """The command line takes 1d, and a program passes milliseconds."""
    with pytest.raises(InvalidConfig) as raised:
        make([("retention_ms", "1d")])
    assert raised.value.hint == "retention_ms is a whole number of milliseconds"


def test_storage_is_fixed_and_the_rest_is_not() -> None:
    memory = make([("storage", "memory"), ("max_bytes", "1000")])
    with pytest.raises(InvalidConfig):
        memory.altered([("storage", "disk")])
    with pytest.raises(InvalidConfig):
        memory.altered([("max_bytes", "none")])
    assert memory.altered([("max_bytes", "2000"), ("storage", "memory")]).max_bytes == 2000
    assert TopicConfig().altered([("sync", "100")]).altered([("sync", "always")]) == TopicConfig()


def test_settings_come_back_as_they_went() -> None:
    config = make([("storage", "memory"), ("max_bytes", "1000"), ("retention_ms", "none")])
    assert make(config.settings()) == config
    assert config.storage is Storage.MEMORY


@pytest.mark.parametrize(
    ("config", "phrases"),
    [
        (TopicConfig(), ["on the disks, synced", "nothing is lost"]),
        (TopicConfig(sync_interval_ms=250), ["at most 250 ms later", "are lost", "crash lose nothing"]),
        (
            TopicConfig(storage=Storage.MEMORY, max_bytes=1000),
            ["on no disk", "it is lost when a majority", "1000 bytes"],
        ),
    ],
)
def test_a_topic_describes_its_promises_and_losses(config: TopicConfig, phrases: list[str]) -> None:
    for phrase in phrases:
        assert phrase in promise(config)
    assert "7 days" in promise(config)


def test_the_page_of_topics_has_a_row_for_each_setting() -> None:
    rows = ["| setting | default | |", "|---|---|---|"]
    for setting in SETTINGS:
        default = setting.text(getattr(TopicConfig(), setting.field))
        if default.isdigit():
            default += f" ({show(setting.name, default)})"
        elif default != "none":
            default = f"`{default}`"
        rows.append(f"| `{setting.name}` | {default} | {setting.help} |")
    table = "\n".join(rows)
    assert table in PAGE.read_text(), f"docs/topics.md should have this table:\n{table}"
