"""Fields of stored messages: those of the base build are unchanged, and each new one defines its absence. An absent
field reads as 0, "" or empty. Messages stored before the field existed must keep their meaning, and 0 seldom means "no
bound". tests/upgrade/test_stored_bytes.py loads what the base build wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tinymq.base.topic_config import SETTINGS
from tinymq.format.feature_level import KNOWN_LEVEL
from tinymq.proto import partition_pb2, peer_pb2, registry_pb2
from tinymq.registry.state.codec import unpack
from tinymq.registry.state.state import RegistryState
from tinymq.registry.state.wire import broker_from_wire

ROOTS = [
    registry_pb2.Command.DESCRIPTOR,
    registry_pb2.State.DESCRIPTOR,
    partition_pb2.Commands.DESCRIPTOR,
    partition_pb2.State.DESCRIPTOR,
    peer_pb2.Config.DESCRIPTOR,
]
BASE = (Path(__file__).parent / "stored_fields.txt").read_text().splitlines()

NEW = {
    "tinymq.registry.v1.Broker.feature_level": (1, "the first level: a build that announces nothing knows no more"),
    "tinymq.registry.v1.State.announced": (1, "no broker is known to have announced more than the first level"),
    "tinymq.registry.v1.State.records": (2, "there are no records"),
    "tinymq.registry.v1.Command.raise_feature_level": (2, "it is another command"),
    "tinymq.registry.v1.Command.put_record": (2, "it is another command"),
    # A topic setting declares its level and its absence itself.
    **{
        f"tinymq.registry.v1.TopicConfig.{each.field}": (each.level, f"{each.absent}")
        for each in SETTINGS
        if each.level > 1
    },
    "tinymq.partition.v1.Command.remove_acknowledged": (2, "it is another command"),
    "tinymq.partition.v1.OpenChannel.kind": (2, "the cursor is a channel's"),
    "tinymq.partition.v1.OpenChannel.group_id": (2, "the cursor belongs to no group"),
    "tinymq.partition.v1.Commit.kind": (2, "the cursor is a channel's"),
    "tinymq.partition.v1.Commit.group_id": (2, "the cursor belongs to no group"),
    "tinymq.partition.v1.Seek.kind": (2, "the cursor is a channel's"),
    "tinymq.partition.v1.Seek.group_id": (2, "the cursor belongs to no group"),
    "tinymq.partition.v1.Cursor.kind": (2, "the cursor is a channel's"),
    "tinymq.partition.v1.Cursor.group_id": (2, "the cursor belongs to no group"),
    "tinymq.partition.v1.OpenChannel.session": (2, "no session of a stream group has the cursor"),
    "tinymq.partition.v1.Cursor.session": (2, "no session of a stream group has the cursor"),
    "tinymq.partition.v1.Command.make": (2, "it is another command"),
    "tinymq.partition.v1.Command.drop": (2, "it is another command"),
    "tinymq.partition.v1.Command.note_message_id": (2, "it is another command"),
    "tinymq.partition.v1.Command.skip_duplicate": (2, "it is another command"),
    "tinymq.partition.v1.Command.settle": (2, "it is another command"),
    "tinymq.partition.v1.Command.open_session": (2, "it is another command"),
    "tinymq.partition.v1.Command.end_session": (2, "it is another command"),
    "tinymq.partition.v1.Command.raise_mark": (2, "it is another command"),
    "tinymq.partition.v1.Command.bury": (2, "it is another command"),
    "tinymq.partition.v1.Command.buried": (2, "it is another command"),
    "tinymq.partition.v1.Command.note_copy": (2, "it is another command"),
    "tinymq.partition.v1.State.queue_groups": (2, "no queue group has anything above its cursor"),
    "tinymq.partition.v1.State.message_ids": (2, "no message id is remembered"),
    "tinymq.partition.v1.State.awaited_message": (2, "the last entry noted no message id"),
    "tinymq.partition.v1.State.copy_ids": (2, "no copy's id is remembered"),
    "tinymq.partition.v1.State.awaited_copy": (2, "the last entry noted no copy's id"),
    "tinymq.partition.v1.State.copy_ids_from": (2, "no copy's id was forgotten"),
    "tinymq.partition.v1.State.delayed": (3, "no delayed batch waits"),
    "tinymq.partition.v1.State.staged": (4, "no transaction has a batch in the partition"),
    "tinymq.partition.v1.State.published": (4, "no PUBLISH entry names a batch of a kept record"),
    "tinymq.partition.v1.Command.stage_offset": (4, "it is another command"),
    "tinymq.partition.v1.Command.publish_offsets": (4, "it is another command"),
    "tinymq.partition.v1.State.staged_offsets": (4, "no transaction has an offset in the partition"),
    "tinymq.partition.v1.Command.stage_acks": (4, "it is another command"),
    "tinymq.partition.v1.State.staged_acks": (4, "no transaction has an ack in the partition"),
}
"""By field that the base build does not have, of a message that it has: (feature level, what its absence means)."""

NEW_MESSAGES = {
    "tinymq.registry.v1.RaiseFeatureLevel": 2,
    "tinymq.registry.v1.PutRecord": 2,
    "tinymq.partition.v1.RemoveAcknowledged": 2,
    "tinymq.partition.v1.NoteMessageId": 2,
    "tinymq.partition.v1.QueueRef": 2,
    "tinymq.partition.v1.SettleRecords": 2,
    "tinymq.partition.v1.OpenQueueSession": 2,
    "tinymq.partition.v1.EndQueueSession": 2,
    "tinymq.partition.v1.RaiseGrantMark": 2,
    "tinymq.partition.v1.BuryRecord": 2,
    "tinymq.partition.v1.EndBurial": 2,
    "tinymq.partition.v1.QueueGroup": 2,
    "tinymq.partition.v1.Burial": 2,
    "tinymq.partition.v1.SkipDuplicate": 2,
    "tinymq.partition.v1.AwaitedMessage": 2,
    "tinymq.registry.v1.Record": 2,
    "tinymq.registry.v1.Announced": 1,
    "tinymq.partition.v1.MakeCursor": 2,
    "tinymq.partition.v1.DropCursor": 2,
    "tinymq.partition.v1.StageOffset": 4,
    "tinymq.partition.v1.PublishOffsets": 4,
    "tinymq.partition.v1.StagedOffsets": 4,
    "tinymq.partition.v1.StageAcks": 4,
    "tinymq.partition.v1.StagedAcks": 4,
    "tinymq.partition.v1.AckedRecords": 4,
}
"""By message that the base build does not have: the feature level from which on it is stored."""


def reachable(roots: list[Descriptor]) -> Iterator[Descriptor]:
    seen: dict[str, Descriptor] = {}
    waiting = list(roots)
    while waiting:
        message = waiting.pop()
        if message.full_name not in seen:
            seen[message.full_name] = message
            waiting += [field.message_type for field in message.fields if field.message_type is not None]
    return (seen[name] for name in sorted(seen))


def drawn(field: FieldDescriptor) -> str:
    of = field.message_type or field.enum_type
    kind = of.full_name if of is not None else field.type
    return f"{field.full_name} {field.number} {kind} {'repeated' if field.is_repeated else 'one'}"


def fields() -> dict[str, str]:
    return {field.full_name: drawn(field) for message in reachable(ROOTS) for field in message.fields}


def test_the_fields_of_the_base_build_are_as_they_were() -> None:
    assert len(BASE) > 80
    assert sorted(set(BASE) - set(fields().values())) == [], "a stored field keeps its number and type for good"


def test_each_new_field_says_what_its_absence_means() -> None:
    base = {line.partition(" ")[0] for line in BASE}
    added = {name for name in fields() if name not in base}
    of_new_messages = {name for name in added if name.rpartition(".")[0] in NEW_MESSAGES}
    assert added - of_new_messages == set(NEW), "say in NEW what it means that the field is absent, and test it below"
    assert {name.rpartition(".")[0] for name in of_new_messages} == set(NEW_MESSAGES)
    assert all(1 <= level <= KNOWN_LEVEL and meaning for level, meaning in NEW.values())


@pytest.mark.parametrize("field", [f.name for f in registry_pb2.State.DESCRIPTOR.fields if f.number >= 10])
def test_a_registry_without_the_field_is_as_before(field: str) -> None:
    state = RegistryState()
    body = registry_pb2.State.FromString(state.dump()[4:])
    body.ClearField(field)
    assert body.SerializeToString() == state.dump()[4:], "nothing of it is written where there is nothing to say"
    contents = unpack(state.dump())
    assert (contents.records, contents.announced, contents.feature_level) == ([], [], 1)


def test_a_broker_that_announces_nothing_knows_the_first_level() -> None:
    assert broker_from_wire(registry_pb2.Broker(broker_id=1)).feature_level == 1
