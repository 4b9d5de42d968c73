"""The topic for the dead letters of a queue group: its name and its settings. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tinymq.base.errors import InvalidConfig
from tinymq.base.group_config import GroupKind, is_pattern
from tinymq.base.topic_config import Retention, Storage, TopicConfig
from tinymq.base.types import TOPIC_NAME_LENGTH_MAX, check_topic_name, check_user_topic
from tinymq.broker.groups.definition import GroupDefinition
from tinymq.registry.state.values import TopicRecord

SUFFIX = ".dlq"


def dead_letter_topic(group: GroupDefinition, topic: str) -> str | None:
    """The name of the topic to which the group buries records of `topic`; None: it drops them, with a log line."""
    named: str | None = group.config()["dlq"]
    return topic + SUFFIX if named == "" else named


def has_dead_letters(topic: str, groups: Iterable[GroupDefinition]) -> bool:
    """Whether a topic is for dead letters. Records that a group gives up there are not buried a second time."""
    if topic.endswith(SUFFIX):
        return True
    return any(group.kind is GroupKind.QUEUE and group.config()["dlq"] == topic for group in groups)


def check_dead_letters(group: GroupDefinition, topics: Iterable[TopicRecord]) -> None:
    """Raises InvalidConfig if the group's dead letters would be less durable than their source, or if the name of
    their topic would be invalid. `topics`: all topics of the cluster."""
    if group.kind is not GroupKind.QUEUE:
        return
    known = {topic.name: topic for topic in topics}
    for pattern in group.topics:
        name = dead_letter_topic(group, pattern)
        if name is None:
            return
        if len(name) > TOPIC_NAME_LENGTH_MAX:
            message = f"the dead letters of {pattern[:100]!r} would be in a topic of {len(name)} characters"
            raise InvalidConfig(
                message, hint=f"a topic's name has at most {TOPIC_NAME_LENGTH_MAX}: choose one, dlq=NAME"
            )
        if not is_pattern(pattern):
            check_user_topic(check_topic_name(name))
        if name == pattern:
            raise InvalidConfig(f"{name!r} cannot have its own dead letters", hint="choose another topic, dlq=NAME")
    for source in known.values():
        name = dead_letter_topic(group, source.name)
        target = known.get(name) if name is not None and group.reads(source.name) else None
        if target is not None and not has_dead_letters(source.name, ()):
            check_durability(source, target)


def check_durability(source: TopicRecord, target: TopicRecord) -> None:
    """Raises InvalidConfig if `target` is less durable than `source`."""
    worse = []
    here, there = source.config, target.config
    if here.storage is Storage.DISK and there.storage is Storage.MEMORY:
        worse.append("it is in memory")
    elif here.storage is Storage.DISK and there.sync_interval_ms > here.sync_interval_ms:
        worse.append(f"it is synced every {there.sync_interval_ms} ms")
    if target.replication_factor < source.replication_factor:
        worse.append(f"it has {target.replication_factor} of {source.replication_factor} replicas")
    if worse:
        raise InvalidConfig(
            f"topic {target.name!r} is less durable than {source.name!r}, whose dead letters it would have: "
            + ", ".join(worse),
            hint="choose another topic, dlq=NAME, or alter this one",
        )


def dead_letter_config(source: TopicConfig) -> TopicConfig:
    """The settings of a topic for dead letters that a broker makes at first use.

    It is as durable as its source, and keeps each dead letter until that is sent back or purged.
    """
    return replace(
        TopicConfig(
            storage=source.storage,
            sync_interval_ms=source.sync_interval_ms,
            max_bytes=source.max_bytes if source.storage is Storage.MEMORY else None,
        ),
        # Only dead letters that were sent back or purged are removed.
        retention=Retention.ACKNOWLEDGED,
        segment_bytes=source.segment_bytes,
    )
