"""A topic's settings in messages and stored bytes: the bytes of the first release, and the fields that it lacks."""

from __future__ import annotations

from typing import Any

import pytest

from tinymq.base.errors import InvalidConfig
from tinymq.base.setting import Choice, Number, Setting, Unit
from tinymq.base.topic_config import SETTINGS, OnFull, Storage, TopicConfig
from tinymq.proto import registry_pb2 as pb
from tinymq.registry.state.wire import config_from_wire, config_to_wire

# As the first release stored them.
STORED = [
    (
        TopicConfig(),
        "0a046469736b188088b2a00220ffffffffffffffffff012880808040308088b2a00238ffffffffffffffffff0140ffffffffffffffffff"
        "014a0672656a656374",
    ),
    (
        TopicConfig(
            storage=Storage.MEMORY, retention_ms=None, max_records=7, max_bytes=1000, on_full=OnFull.DROP_OLDEST
        ),
        "0a066d656d6f727918ffffffffffffffffff0120ffffffffffffffffff012880808040308088b2a002380740e8074a0b64726f705f6f6c"
        "64657374",
    ),
]
TYPES = {Number: int, Choice: str}


@pytest.mark.parametrize(("config", "stored"), STORED)
def test_a_config_of_the_first_release_is_read_and_written_as_the_same_bytes(config: TopicConfig, stored: str) -> None:
    assert config_from_wire(pb.TopicConfig.FromString(bytes.fromhex(stored))) == config
    assert config_to_wire(config).SerializeToString(deterministic=True).hex() == stored


def test_the_message_has_one_field_for_each_setting() -> None:
    assert [f.name for f in pb.TopicConfig.DESCRIPTOR.fields] == [setting.field for setting in SETTINGS]
    empty = pb.TopicConfig()
    assert all(type(getattr(empty, setting.field)) is TYPES[type(setting.kind)] for setting in SETTINGS)


@pytest.mark.parametrize("field", ["storage", "on_full", "retention_ms", "max_bytes", "segment_bytes"])
def test_a_field_that_the_first_release_stored_is_never_absent(field: str) -> None:
    config = config_to_wire(TopicConfig())
    config.ClearField(field)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig):
        config_from_wire(config)


BOUND = Number(Unit.BYTES, 1, 100, none_word="none")


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        (Setting(BOUND, "", absent=None, level=2), {0: None, 7: 7}),
        (Setting(BOUND, "", absent=9, level=2), {0: 9, -1: None, 7: 7}),
        (Setting(Number(Unit.RECORDS, 0, 100), "", absent=0, level=2), {0: 0, 7: 7}),
        (Setting(Choice(Storage), "", absent=Storage.DISK, level=2), {"": Storage.DISK, "memory": Storage.MEMORY}),
    ],
)
def test_a_new_setting_defines_its_absence_in_stored_bytes(setting: Setting, values: dict[Any, Any]) -> None:
    added = setting.declared("added")
    for stored, value in values.items():
        assert added.from_wire(stored) == value
        assert added.to_wire(value) == stored


def test_a_stored_zero_has_one_meaning() -> None:
    with pytest.raises(AssertionError, match="0 is in range"):
        Setting(Number(Unit.BYTES, 0, 100), "", absent=5, level=2).declared("added")


@pytest.mark.parametrize("setting", [Setting(BOUND, "", absent=None), Setting(BOUND, "", level=2)])
def test_a_later_setting_says_what_its_absence_means_and_needs_a_level(setting: Setting) -> None:
    with pytest.raises(AssertionError, match="added: a setting after the first release"):
        setting.declared("added")
