"""Consumer groups: their kinds and settings, each declared once, and the topics that their patterns stand for.

The command line, the registry's records and `describe` read the declarations. Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from tinymq.base.errors import InvalidConfig
from tinymq.base.setting import Choice, DelayList, Number, Setting, TopicName, Unit

RETRY_MS_MAX = 30 * 86_400_000  # between two deliveries of a record


class GroupKind(Enum):
    """How a group divides its topics."""

    STREAM = "stream"  # partitions among members
    QUEUE = "queue"  # records among workers


class Assignor(Enum):
    """How the partitions of a stream group are divided."""

    BALANCED = "balanced"  # evenly over all topics; a member keeps its present partitions if it can
    RANGE = "range"  # neighbouring partitions of each topic; equal numbers of equally large topics go to one member


class Ordering(Enum):
    """In which order a queue group delivers its records."""

    NONE = "none"
    KEY = "key"  # records with the same key one at a time, in the order of their offsets


Declared = Mapping[str, tuple[Setting, Any]]
"""By name: the setting, and its default."""


def _declare(**settings: tuple[Setting, Any]) -> Declared:
    return MappingProxyType({name: (setting.declared(name), default) for name, (setting, default) in settings.items()})


def _ms(least: int, most: int, text: str, default: int) -> tuple[Setting, int]:
    return Setting(Number(Unit.MILLISECONDS, least, most), text), default


def _records(text: str, default: int) -> tuple[Setting, int]:
    return Setting(Number(Unit.RECORDS, 1, 10_000), text), default


def _bound(unit: Unit, least: int, most: int, text: str) -> tuple[Setting, None]:
    return Setting(Number(unit, least, most, none_word="none"), text), None


MEMBERS_MAX = 1000  # of one group

SETTINGS: Mapping[GroupKind, Declared] = MappingProxyType(
    {
        GroupKind.STREAM: _declare(
            assignor=(Setting(Choice(Assignor), "how partitions are divided"), Assignor.BALANCED),
            rejoin_ms=_ms(500, 300_000, "a member that is silent for so long loses its partitions", 3000),
            revoke_ms=_ms(0, 3_600_000, "so long a handler may keep a partition that goes to another member", 30_000),
            static_return_ms=_ms(
                0, 3_600_000, "so long the partitions of a member with an instance_id wait for its return", 45_000
            ),
            max_members=_bound(Unit.MEMBERS, 1, MEMBERS_MAX, "members that have partitions; the others stand by"),
        ),
        GroupKind.QUEUE: _declare(
            ordering=(Setting(Choice(Ordering), "whether the records of a key wait for each other"), Ordering.NONE),
            lease_ms=_ms(1000, 43_200_000, "so long a worker has a record before it is asked about it", 30_000),
            ask_ms=_ms(100, 60_000, "so long a worker has for that answer", 2000),
            session_ms=_ms(1000, 600_000, "a worker that is silent for so long loses its records", 10_000),
            rejoin_ms=_ms(500, 300_000, "so long a worker has to come back after a lost connection", 3000),
            retry_ms=(
                Setting(
                    DelayList(0, RETRY_MS_MAX, 32), "the delays after a record's first, second ... failed delivery"
                ),
                (10_000, 30_000, 60_000, 300_000, 1_800_000),
            ),
            deliveries_max=(
                Setting(
                    Number(Unit.DELIVERIES, 1, 1000, none_word="retries"),
                    "failed deliveries after which a record is a dead letter; `retries`: one more than `retry_ms` has",
                ),
                None,
            ),
            dlq=(Setting(TopicName(), "the topic of dead letters; empty: the topic's name and .dlq; `none`: none"), ""),
            leased_max=_records("records of one partition that its workers have at once", 10_000),
            waiting_max=_records("records of one partition that wait for another delivery", 10_000),
            rate_max=_bound(Unit.RECORDS, 1, 1_000_000, "records per second, divided evenly among the partitions"),
            concurrency_max=_bound(
                Unit.RECORDS,
                1,
                1_000_000,
                "records that workers have at once, divided evenly among the partitions; at least one in each",
            ),
            message_ttl_ms=_bound(
                Unit.MILLISECONDS, 1000, 10 * 365 * 86_400_000, "a record that was appended longer ago is not delivered"
            ),
            max_members=_bound(Unit.MEMBERS, 1, MEMBERS_MAX, "workers that get records of a partition; others wait"),
        ),
    }
)


LEASE_SETTINGS = frozenset({"ordering", "lease_ms", "ask_ms", "session_ms", "rejoin_ms"})
"""Of queue groups: what workers and leaders have agreed on for the records that they hold. They change only while no
record is leased."""
FIXED_SETTINGS = frozenset({"rejoin_ms"})
"""Of stream groups: members count with it from before they join, so it never changes."""


def parse_group_settings(kind: GroupKind, settings: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """All settings of a group, the defaults included, from those that are given by name and text.

    Raises InvalidConfig for a setting that is unknown, given twice or out of range.
    """
    declared = SETTINGS[kind]
    given: dict[str, Any] = {}
    for name, text in settings:
        if name not in declared:
            near = difflib.get_close_matches(name, declared, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(declared) or 'none'}"
            raise InvalidConfig(f"no setting of a {kind.value} group: {name[:100]!r}", hint=hint)
        if name in given:
            raise InvalidConfig(f"{name} is given twice", hint="say each setting once")
        setting, _ = declared[name]
        given[name] = setting.parse(text)
        setting.check(given[name])
    return {name: given.get(name, default) for name, (_, default) in declared.items()}


def differing_settings(
    kind: GroupKind, given: Iterable[tuple[str, str]], present: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """The given settings that a present group of this kind has with another value, by name: (given, present).

    Two texts of one value do not differ. A setting that this build or the group's brokers do not know is left out.
    """
    declared = SETTINGS[kind]
    differing = {}
    for name, text in given:
        if name in declared and name in present:
            setting, _ = declared[name]
            try:
                wanted = setting.text(setting.parse(text))
            except InvalidConfig:
                wanted = text  # only the broker's build knows this value
            if wanted != present[name]:
                differing[name] = (wanted, present[name])
    return differing


def is_pattern(topic: str) -> bool:
    """Whether the text is a pattern, which stands for all present and future topics that match."""
    return "*" in topic or "?" in topic


def topic_matches(pattern: str, topic: str) -> bool:
    """Whether the topic's name equals the pattern or matches it."""
    return pattern == topic if not is_pattern(pattern) else _compiled(pattern).fullmatch(topic) is not None


@lru_cache(1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    # Each star takes as little as it can and never gives back what it took: the time is that of one pass.
    first, *parts = re.sub(r"\*+", "*", pattern).split("*")
    text = _literal(first)
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        text += f".*{_literal(part)}" if last else f"(?>.*?{_literal(part)})"
    return re.compile(text)


def _literal(part: str) -> str:
    return ".".join(map(re.escape, part.split("?")))
