"""The definition of a consumer group that the registry stores: a value, its bytes, and the topics that it reads.
Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from google.protobuf.message import DecodeError

from tinymq.base.errors import CorruptData, InvalidName, InvalidRequest
from tinymq.base.group_config import GroupKind, is_pattern, parse_group_settings, topic_matches
from tinymq.base.types import check_channel_name, check_topic_name, is_internal
from tinymq.broker.state.cursor import CursorKind
from tinymq.proto import group_pb2 as pb
from tinymq.registry.state.values import MetadataRecord

RECORD_KIND = "group"
TOPICS_MAX = 100  # names and patterns of one group
PATTERN_STARS_MAX = 8
START_EARLIEST = -2

KINDS = {GroupKind.STREAM: CursorKind.STREAM, GroupKind.QUEUE: CursorKind.QUEUE}
_KIND_OF = {int(number): kind for kind, number in KINDS.items()}
_PATTERN = re.compile(r"[A-Za-z0-9._*?-]{1,249}")


class GroupPhase(IntEnum):
    """How far the creation or the deletion of a group has come."""

    MAKING = pb.Group.MAKING
    READY = pb.Group.READY
    DELETING = pb.Group.DELETING


@dataclass(frozen=True, slots=True)
class GroupDefinition:
    """A consumer group. Its members and cursors are stored elsewhere (docs/groups.md)."""

    name: str
    kind: GroupKind
    topics: tuple[str, ...]  # names and patterns
    start_us: int = START_EARLIEST  # record time at which its cursors begin, in partitions that exist when it is made
    settings: tuple[tuple[str, str], ...] = ()
    command_id: bytes = b""  # of the call that made the group
    group_id: int = 0  # the registry's version when it was made; a group that is made again has a higher one
    phase: GroupPhase = GroupPhase.MAKING
    paused: bool = False  # only queue groups: no record is granted while it is True
    altered_by: bytes = b""  # command id of the last call that changed the group
    version: int = 0  # of the group's record in the registry

    @property
    def cursor_kind(self) -> CursorKind:
        return KINDS[self.kind]

    @property
    def lists(self) -> bool:
        """Whether an added partition of its topics needs a cursor before the first write."""
        return self.phase is not GroupPhase.DELETING

    def reads(self, topic: str) -> bool:
        """Whether a topic of that name belongs to the group."""
        return not is_internal(topic) and any(topic_matches(pattern, topic) for pattern in self.topics)

    def config(self) -> dict[str, Any]:
        """All settings, the defaults included."""
        return parse_group_settings(self.kind, self.settings)

    def in_phase(self, phase: GroupPhase) -> GroupDefinition:
        return replace(self, phase=phase)

    def pack(self) -> bytes:
        return pb.Group(
            group_id=self.group_id,
            kind=self.cursor_kind,
            state=pb.Group.State.ValueType(self.phase),
            topics=self.topics,
            start_us=self.start_us,
            settings=[pb.Setting(name=name, value=value) for name, value in self.settings],
            command_id=self.command_id,
            paused=self.paused,
            altered_by=self.altered_by,
        ).SerializeToString(deterministic=True)


def parse_group(record: MetadataRecord) -> GroupDefinition:
    """The group of a registry record. Raises CorruptData."""
    try:
        stored = pb.Group.FromString(record.value)
        return GroupDefinition(
            name=record.name,
            kind=_KIND_OF[stored.kind],
            topics=tuple(stored.topics),
            start_us=stored.start_us,
            settings=tuple((setting.name, setting.value) for setting in stored.settings),
            command_id=stored.command_id,
            group_id=stored.group_id or record.version,
            phase=GroupPhase(stored.state),
            paused=stored.paused,
            altered_by=stored.altered_by,
            version=record.version,
        )
    except (DecodeError, KeyError, ValueError):
        raise CorruptData(f"this build cannot read the record of group {record.name!r}") from None


def check_group(group: GroupDefinition) -> GroupDefinition:
    """Return the group if it is valid. Raises InvalidName, InvalidRequest, InvalidConfig."""
    check_channel_name(group.name)
    if not 0 < len(group.topics) <= TOPICS_MAX or len(set(group.topics)) != len(group.topics):
        raise InvalidRequest(f"a group of {len(group.topics)} topics", hint=f"1 to {TOPICS_MAX}, each once")
    for topic in group.topics:
        if not is_pattern(topic):
            check_topic_name(topic)
            if is_internal(topic):
                raise InvalidName(f"topic {topic!r} belongs to the cluster", hint="groups read users' topics")
        elif not _PATTERN.fullmatch(topic) or topic.count("*") > PATTERN_STARS_MAX:
            hint = f"a topic's characters, ? for any one, and up to {PATTERN_STARS_MAX} * for any number"
            raise InvalidName(f"{topic[:300]!r} is no pattern of topics", hint=hint)
    group.config()
    return group
