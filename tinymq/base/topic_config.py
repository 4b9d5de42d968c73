"""The settings of a topic, each declared once, and what they promise together.

A field of `TopicConfig` with its `Setting` is the whole declaration. Parsing, ranges, the command line's `--help` and
units, the registry's messages and stored bytes, `describe` and the table in docs/topics.md read it. All bounds are per
partition. `None` is no bound. `storage` is fixed when a topic is created; all other settings can be altered.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, get_type_hints

from tinymq.base.errors import InvalidConfig
from tinymq.base.setting import Choice, Clause, Number, Setting, Unit

DAY_MS = 86_400_000
MS_MAX = 100 * 365 * DAY_MS
BYTES_MAX = 1 << 60
RECORDS_MAX = 1 << 60
SEGMENT_BYTES_MIN = 64 * 1024
SEGMENT_MS_MIN = 1000
SYNC_INTERVAL_MS_MAX = 60_000
SETTINGS_MAX = 64  # in one request
NO_BOUND = "none"  # how users write None


class Storage(Enum):
    """Where a topic's log lies."""

    DISK = "disk"
    MEMORY = "memory"  # replicated in memory: lost when a majority of its brokers stop before they are back


class OnFull(Enum):
    """The fate of a write for which a full partition has no room."""

    REJECT = "reject"  # QuotaExceeded
    DROP_OLDEST = "drop_oldest"  # the log start moves


class Retention(Enum):
    """The condition under which a record is removable."""

    TIME = "time"  # its age, or the bytes that are newer: `retention_ms` and `retention_bytes`
    ACKNOWLEDGED = "acknowledged"  # every cursor of the partition is behind it, and there is at least one


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """All settings of a topic."""

    storage: Annotated[
        Storage,
        Setting(
            Choice(Storage), "or `memory`: replicated in memory; needs `max_bytes`. Fixed when the topic is created"
        ),
    ] = Storage.DISK

    # 0: synced before each acknowledgement; otherwise at most this long after it.
    sync_interval_ms: Annotated[
        int,
        Setting(
            Number(Unit.MILLISECONDS, 0, SYNC_INTERVAL_MS_MAX, zero_word="always"),
            "before each acknowledgement; or a number of milliseconds, 1 to 60,000: at most that long after it",
            name="sync",
            example="always|100ms",
        ),
    ] = 0

    retention_ms: Annotated[
        int | None,
        Setting(
            Number(Unit.MILLISECONDS, 1000, MS_MAX, none_word=NO_BOUND),
            "counted from when a record was appended; its own timestamp does not count",
            example="7d",
            clause=Clause.REMOVAL,
            phrase="{} after it was appended",
        ),
    ] = 7 * DAY_MS

    retention_bytes: Annotated[
        int | None,
        Setting(
            Number(Unit.BYTES, 1, BYTES_MAX, none_word=NO_BOUND),
            "of records, as stored; how much more is kept: [guarantees.md](guarantees.md#what-is-removed)",
            example="1GiB",
            clause=Clause.REMOVAL,
            phrase="once its partition holds {} that are newer",
        ),
    ] = None

    # A start reads the newest segment twice, so a segment is small: docs/adr/0021, 0023.
    segment_bytes: Annotated[
        int, Setting(Number(Unit.BYTES, SEGMENT_BYTES_MIN, BYTES_MAX), f"at least {SEGMENT_BYTES_MIN:,}")
    ] = 128 << 20

    segment_ms: Annotated[
        int, Setting(Number(Unit.MILLISECONDS, SEGMENT_MS_MIN, MS_MAX), f"at least {SEGMENT_MS_MIN:,}")
    ] = 7 * DAY_MS

    max_records: Annotated[
        int | None,
        Setting(
            Number(Unit.RECORDS, 1, RECORDS_MAX, none_word=NO_BOUND),
            "a partition with this many records is full",
            clause=Clause.CAPACITY,
        ),
    ] = None

    max_bytes: Annotated[
        int | None,
        Setting(
            Number(Unit.BYTES, 1, BYTES_MAX, none_word=NO_BOUND),
            "a partition with this many bytes of records, as stored, is full",
            clause=Clause.CAPACITY,
        ),
    ] = None

    on_full: Annotated[
        OnFull,
        Setting(
            Choice(OnFull),
            "a write to a full partition gets QuotaExceeded at its deadline; or `drop_oldest`: the log start moves",
        ),
    ] = OnFull.REJECT

    retention: Annotated[
        Retention,
        Setting(
            Choice(Retention),
            "what `retention_ms` and `retention_bytes` say; or `acknowledged`: what every channel has read",
            absent=Retention.TIME,
            level=2,
        ),
    ] = Retention.TIME

    dedupe_window_ms: Annotated[
        int | None,
        Setting(
            Number(Unit.MILLISECONDS, 1000, DAY_MS, none_word="off", usual_word="on", usual=120_000),
            "or `on`, which is 2 minutes, or a number of milliseconds: "
            "how long a record's `message_id` is remembered, among the last 100,000",
            name="dedupe_window",
            example="on",
            absent=None,
            level=2,
        ),
    ] = None

    def __post_init__(self) -> None:
        for setting in SETTINGS:
            setting.check(getattr(self, setting.field))
        if self.storage is Storage.MEMORY and self.max_bytes is None:
            raise InvalidConfig("a topic in memory needs max_bytes", hint="say how much memory each partition may take")
        if self.storage is Storage.MEMORY and self.sync_interval_ms:
            raise InvalidConfig("a topic in memory is never synced", hint="leave sync out, or choose storage=disk")
        if self.retention is Retention.ACKNOWLEDGED and self.on_full is OnFull.DROP_OLDEST:
            hint = "choose on_full=reject: reading makes room"
            raise InvalidConfig("on_full=drop_oldest removes records that retention=acknowledged keeps", hint=hint)

    def altered(self, settings: Iterable[tuple[str, str]]) -> TopicConfig:
        """Return a copy with these settings, given by name and text.

        Raises InvalidConfig for a setting that is unknown, given twice, out of range, or fixed.
        """
        changes = parse_settings(settings)
        if changes.get("storage", self.storage) is not self.storage:
            raise InvalidConfig("a topic's storage is fixed when it is made", hint="make another topic")
        return replace(self, **changes)  # type: ignore[arg-type]

    def settings(self) -> list[tuple[str, str]]:
        """Every setting, as `make` and `altered` take it, in the order of the fields."""
        return [(setting.name, setting.text(getattr(self, setting.field))) for setting in SETTINGS]


def _declared() -> tuple[Setting, ...]:
    hints = get_type_hints(TopicConfig, include_extras=True)
    return tuple(hint.__metadata__[0].declared(field) for field, hint in hints.items())


SETTINGS = _declared()  # in the order of the fields
BY_NAME = {setting.name: setting for setting in SETTINGS}


def make(settings: Iterable[tuple[str, str]] = ()) -> TopicConfig:
    """The defaults with these settings. Raises InvalidConfig."""
    return TopicConfig(**parse_settings(settings))  # type: ignore[arg-type]


def parse_settings(settings: Iterable[tuple[str, str]]) -> dict[str, object]:
    """Settings by name and text as field names and values.

    Raises InvalidConfig for a name that is unknown or given twice, and for text that is no value of its setting.
    """
    parsed: dict[str, object] = {}
    for name, text in settings:
        setting = BY_NAME.get(name)
        if setting is None:
            near = difflib.get_close_matches(name, BY_NAME, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(BY_NAME)}"
            raise InvalidConfig(f"no topic setting {name[:100]!r}", hint=hint)
        if setting.field in parsed:
            raise InvalidConfig(f"{name} is given twice", hint="say each setting once; docs/topics.md shows them")
        parsed[setting.field] = setting.parse(text)
    return parsed


def promise(config: TopicConfig) -> str:
    """Describe what a topic with these settings promises and what it can lose, one line per promise."""
    lines = [_durability(config)]
    ends = _phrases(config, Clause.REMOVAL)
    if config.retention is Retention.ACKNOWLEDGED:
        ends = ["once every channel of its partition has read it"]
    lines.append(f"It may be removed {', or '.join(ends)}." if ends else "It is kept until a trim removes it.")
    if bounds := _phrases(config, Clause.CAPACITY):
        action = "drops the oldest" if config.on_full is OnFull.DROP_OLDEST else "refuses writes"
        lines.append(f"A partition with {' or '.join(bounds)} {action}.")
    return "\n".join(lines)


def _phrases(config: TopicConfig, clause: Clause) -> list[str]:
    """The phrases of the bounds that are set, for one sentence of the promise."""
    values = ((setting, getattr(config, setting.field)) for setting in SETTINGS if setting.clause is clause)
    return [setting.phrase.format(setting.spelled(value)) for setting, value in values if value is not None]


def _durability(config: TopicConfig) -> str:
    if config.storage is Storage.MEMORY:
        return (
            "An acknowledged record is in the memory of a majority of its replicas, and on no disk: it is lost when a "
            "majority of their brokers end, each before the last one has its log again. The topic then continues "
            "with the remaining records; without any, offsets begin at 0 again."
        )
    if config.sync_interval_ms:
        return (
            "An acknowledged record is written by a majority of its replicas, and they begin to sync it at most "
            f"{config.sync_interval_ms} ms later. Brokers that crash lose nothing, and neither does a minority of "
            "machines that lose power. When a majority loses power, records acknowledged in that time are lost, "
            "and the topic continues with the longest remaining log."
        )
    return (
        "An acknowledged record is on the disks, synced, of a majority of its replicas: nothing is lost when any "
        "minority of them is lost, or when all of them lose power."
    )
