"""The effects of a change of the registry's state, as watchers get them. Frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from tinymq.registry.state.values import QueueRecord, TopicRecord


@dataclass(frozen=True, slots=True)
class TopicCreated:
    topic: TopicRecord


@dataclass(frozen=True, slots=True)
class TopicAltered:
    """The topic's config has changed."""

    topic: TopicRecord


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """The topic was deleted with all its partitions."""

    topic: TopicRecord


@dataclass(frozen=True, slots=True)
class PartitionAdded:
    """An existing topic has one more partition."""

    queue: QueueRecord


@dataclass(frozen=True, slots=True)
class PartitionDeleted:
    """A topic that still exists has one partition less."""

    queue: QueueRecord


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """A broker registered, registered again, or is gone."""


@dataclass(frozen=True, slots=True)
class ConsumersChanged:
    """A consumer began or stopped reading a partition for a channel. Consumers that end with their partition cause no
    effect."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The whole state was replaced: look at everything again."""


@dataclass(frozen=True, slots=True)
class RecordChanged:
    """A record was written or removed."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class FeatureLevelRaised:
    """The feature level rose: more may be proposed from now on."""

    level: int


Effect = (
    TopicCreated
    | TopicAltered
    | TopicDeleted
    | PartitionAdded
    | PartitionDeleted
    | BrokersChanged
    | ConsumersChanged
    | RecordChanged
    | FeatureLevelRaised
    | Reloaded
)
