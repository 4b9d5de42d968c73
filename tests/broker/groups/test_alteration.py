"""What may be changed of a group that is there."""

from __future__ import annotations

import pytest

from tinymq.base.errors import InvalidConfig, WrongKind
from tinymq.base.group_config import FIXED_SETTINGS, LEASE_SETTINGS, SETTINGS, GroupKind
from tinymq.broker.groups.alteration import Alteration, agreed_settings, altered
from tinymq.broker.groups.definition import GroupDefinition, parse_group
from tinymq.registry.state.values import MetadataRecord

QUEUE = GroupDefinition("g", GroupKind.QUEUE, ("t",), settings=(("lease_ms", "5000"),), group_id=7)
STREAM = GroupDefinition("s", GroupKind.STREAM, ("t",), group_id=8)
ID = b"i" * 16


def test_settings_that_are_not_named_stay() -> None:
    after = altered(QUEUE, Alteration((("rate_max", "10"),), command_id=ID))
    assert after.settings == (("lease_ms", "5000"), ("rate_max", "10"))
    assert (after.group_id, after.topics, after.altered_by) == (7, ("t",), ID)
    assert altered(after, Alteration((("rate_max", "none"),))).config()["rate_max"] is None


def test_all_settings_are_changed_or_none() -> None:
    with pytest.raises(InvalidConfig):
        altered(QUEUE, Alteration((("rate_max", "10"), ("lease_ms", "1"))))
    with pytest.raises(InvalidConfig):
        altered(QUEUE, Alteration((("rate_max", "10"), ("rate_max", "11"))))


def test_a_repeat_changes_nothing_although_another_call_came_between() -> None:
    first = altered(QUEUE, Alteration((("rate_max", "10"),), command_id=ID))
    assert altered(first, Alteration((("rate_max", "10"),), command_id=b"j" * 16)) is first, "it is so already"
    assert altered(first, Alteration((("rate_max", "11"),), command_id=ID)) is first


def test_a_pause_is_stored() -> None:
    paused = altered(QUEUE, Alteration(paused=True, command_id=ID))
    assert parse_group(MetadataRecord("group", "g", paused.pack(), 9)) == altered(
        GroupDefinition("g", GroupKind.QUEUE, ("t",), settings=QUEUE.settings, group_id=7, version=9),
        Alteration(paused=True, command_id=ID),
    )
    assert altered(paused, Alteration()) is paused
    assert not altered(paused, Alteration(paused=False)).paused


def test_what_a_stream_group_cannot() -> None:
    with pytest.raises(WrongKind):
        altered(STREAM, Alteration(paused=True))
    with pytest.raises(InvalidConfig):
        altered(STREAM, Alteration((("rejoin_ms", "4000"),)))
    assert altered(STREAM, Alteration((("rejoin_ms", "3000"), ("max_members", "1")))).config()["max_members"] == 1


def test_what_leases_were_granted_under() -> None:
    assert SETTINGS[GroupKind.QUEUE].keys() >= LEASE_SETTINGS
    assert SETTINGS[GroupKind.STREAM].keys() >= FIXED_SETTINGS
    after = altered(QUEUE, Alteration((("lease_ms", "6000"), ("ordering", "key"), ("waiting_max", "5"))))
    assert agreed_settings(QUEUE, after) == ["lease_ms", "ordering"]
    assert agreed_settings(QUEUE, altered(QUEUE, Alteration((("lease_ms", "5000"),)))) == []
    assert agreed_settings(STREAM, altered(STREAM, Alteration((("assignor", "range"),)))) == []
