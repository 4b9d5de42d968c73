"""What a change of the registry's state comes to, as its watchers are told. Frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from tinymq.registry.values import QueueRecord, TopicRecord


@dataclass(frozen=True, slots=True)
class TopicCreated:
    topic: TopicRecord


@dataclass(frozen=True, slots=True)
class TopicAltered:
    """Its config is another."""

    topic: TopicRecord


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """All its partitions with it."""

    topic: TopicRecord


@dataclass(frozen=True, slots=True)
class QueueCreated:
    """One more partition of a topic that was there."""

    queue: QueueRecord


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    """One partition less of a topic that stays."""

    queue: QueueRecord


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """One registered, registered anew, or is gone."""


@dataclass(frozen=True, slots=True)
class ConsumersChanged:
    """Somebody reads a partition for a channel, or does no more; not told of those that go with their partition."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The state was replaced whole: look at everything again."""


@dataclass(frozen=True, slots=True)
class RecordChanged:
    """A record was written, or removed."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class FeatureLevelRaised:
    """From now on more may be proposed."""

    level: int


Effect = (
    TopicCreated
    | TopicAltered
    | TopicDeleted
    | QueueCreated
    | QueueDeleted
    | BrokersChanged
    | ConsumersChanged
    | RecordChanged
    | FeatureLevelRaised
    | Reloaded
)
