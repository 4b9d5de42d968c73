"""What a topic can be told: one frozen value, its settings by name, and the one place that parses them.

All bounds are per partition. `None` is no bound. `storage` is fixed when the topic is made; all else may be altered.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from enum import Enum

from tinymq.base.errors import InvalidConfig
from tinymq.base.quantity import quantity

DAY_MS = 86_400_000
MS_MAX = 100 * 365 * DAY_MS
BYTES_MAX = 1 << 60
RECORDS_MAX = 1 << 60
SEGMENT_BYTES_MIN = 64 * 1024
SEGMENT_MS_MIN = 1000
SYNC_INTERVAL_MS_MAX = 60_000
SETTINGS_MAX = 64  # in one request


class Storage(Enum):
    """Where a topic's log lies."""

    DISK = "disk"
    MEMORY = "memory"  # replicated in memory: lost when a majority of its brokers stop before they are back


class OnFull(Enum):
    """What happens to a write that a full partition has no room for."""

    REJECT = "reject"  # QuotaExceeded
    DROP_OLDEST = "drop_oldest"  # the log start moves


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings, whole."""

    storage: Storage = Storage.DISK
    sync_interval_ms: int = 0  # 0: synced before each acknowledgement; else at most this long after it
    retention_ms: int | None = 7 * DAY_MS  # since a record was appended; its own timestamp does not count
    retention_bytes: int | None = None  # of records, as stored
    segment_bytes: int = 128 << 20  # a start reads the newest segment twice: docs/adr/0021, 0023
    segment_ms: int = 7 * DAY_MS
    max_records: int | None = None
    max_bytes: int | None = None  # of records, as stored
    on_full: OnFull = OnFull.REJECT

    def __post_init__(self) -> None:
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                shown = "sync, in milliseconds," if name == "sync_interval_ms" else name
                raise InvalidConfig(f"{shown} is {value}", hint=f"{shown} is between {least} and {most}")
        if self.storage is Storage.MEMORY and self.max_bytes is None:
            raise InvalidConfig("a topic in memory needs max_bytes", hint="say how much memory each partition may take")
        if self.storage is Storage.MEMORY and self.sync_interval_ms:
            raise InvalidConfig("a topic in memory is never synced", hint="leave sync out, or choose storage=disk")

    def altered(self, settings: Iterable[tuple[str, str]]) -> TopicConfig:
        """With these settings, by name and text. Raises InvalidConfig: unknown, twice, out of range, or fixed."""
        changes = parse_settings(settings)
        if changes.get("storage", self.storage) is not self.storage:
            raise InvalidConfig("a topic's storage is fixed when it is made", hint="make another topic")
        return replace(self, **changes)  # type: ignore[arg-type]

    def settings(self) -> list[tuple[str, str]]:
        """Every setting, as `make` and `altered` take it, in the order of the fields."""
        return [(_name_of(f.name), _text(f.name, getattr(self, f.name))) for f in fields(self)]


_RANGES = (
    ("sync_interval_ms", 0, SYNC_INTERVAL_MS_MAX),
    ("retention_ms", 1000, MS_MAX),
    ("retention_bytes", 1, BYTES_MAX),
    ("segment_bytes", SEGMENT_BYTES_MIN, BYTES_MAX),
    ("segment_ms", SEGMENT_MS_MIN, MS_MAX),
    ("max_records", 1, RECORDS_MAX),
    ("max_bytes", 1, BYTES_MAX),
)


def make(settings: Iterable[tuple[str, str]] = ()) -> TopicConfig:
    """The defaults with these settings. Raises InvalidConfig."""
    return TopicConfig(**parse_settings(settings))  # type: ignore[arg-type]


def promise(config: TopicConfig) -> str:
    """What a topic with these settings promises, and what it loses: a line for each, for people."""
    if config.storage is Storage.MEMORY:
        kept = "An acknowledged record is in the memory of a majority of its replicas, and on no disk: it is lost when"
        kept += " a majority of their brokers end, each before the last one was filled again. The topic then goes on by"
        kept += " itself with what is left; with nothing left, offsets begin at 0 again."
    elif config.sync_interval_ms:
        kept = "An acknowledged record is written by a majority of its replicas, and they begin to sync it at most"
        kept += f" {config.sync_interval_ms} ms later. Brokers that crash lose nothing, nor does a minority of machines"
        kept += " without power. When a majority loses power within that time, what came in it is lost, and the topic"
        kept += " goes on with the longest log that is left."
    else:
        kept = "An acknowledged record is on the disks, synced, of a majority of its replicas: nothing is lost with any"
        kept += " minority of them, or with the power of all."
    ends = [f"{_span(config.retention_ms)} after it was appended"] if config.retention_ms is not None else []
    if config.retention_bytes is not None:
        ends.append(f"once its partition holds {quantity(config.retention_bytes, 'byte')} that are newer")
    gone = f"It may be removed {', or '.join(ends)}." if ends else "It is kept until somebody removes it."
    bounds = [quantity(config.max_records, "record")] if config.max_records is not None else []
    bounds += [quantity(config.max_bytes, "byte")] if config.max_bytes is not None else []
    if not bounds:
        return f"{kept}\n{gone}"
    then = "drops the oldest" if config.on_full is OnFull.DROP_OLDEST else "refuses writes"
    return f"{kept}\n{gone}\nA partition with {' or '.join(bounds)} {then}."


def _span(time_ms: int) -> str:
    units = (("day", DAY_MS), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000))
    for unit, size in units:
        if time_ms % size == 0:
            return quantity(time_ms // size, unit)
    return f"{time_ms} ms"


def parse_settings(settings: Iterable[tuple[str, str]]) -> dict[str, object]:
    """Field names and values. Raises InvalidConfig for what is unknown, named twice, or no such value."""
    parsed: dict[str, object] = {}
    for name, text in settings:
        if name not in _PARSERS:
            near = difflib.get_close_matches(name, _PARSERS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_PARSERS)}"
            raise InvalidConfig(f"no topic setting {name[:100]!r}", hint=hint)
        field, parse = _PARSERS[name]
        if field in parsed:
            raise InvalidConfig(f"{name} is given twice", hint="say each setting once; docs/topics.md shows them")
        parsed[field] = parse(name, text)
    return parsed


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise InvalidConfig(f"{name} is {text[:100]!r}", hint=f"{name} is a whole number")
    return int(text)


def _number_or_none(name: str, text: str) -> int | None:
    return None if text == "none" else _number(name, text)


def _sync(name: str, text: str) -> int:
    if text == "always":
        return 0
    interval_ms = _number(name, text)
    if not interval_ms:
        raise InvalidConfig("sync is 0", hint="write sync=always, or a number of milliseconds")
    return interval_ms


def _choice(kind: type[Enum]) -> Callable[[str, str], Enum]:
    def parse(name: str, text: str) -> Enum:
        try:
            return kind(text)
        except ValueError:
            choices = " or ".join(str(choice.value) for choice in kind)
            raise InvalidConfig(f"{name} is {text[:100]!r}", hint=f"{name} is {choices}") from None

    return parse


_PARSERS: dict[str, tuple[str, Callable[[str, str], object]]] = {
    "storage": ("storage", _choice(Storage)),
    "sync": ("sync_interval_ms", _sync),
    "retention_ms": ("retention_ms", _number_or_none),
    "retention_bytes": ("retention_bytes", _number_or_none),
    "segment_bytes": ("segment_bytes", _number),
    "segment_ms": ("segment_ms", _number),
    "max_records": ("max_records", _number_or_none),
    "max_bytes": ("max_bytes", _number_or_none),
    "on_full": ("on_full", _choice(OnFull)),
}


def _name_of(field: str) -> str:
    return "sync" if field == "sync_interval_ms" else field


def _text(field: str, value: object) -> str:
    if field == "sync_interval_ms":
        return str(value) if value else "always"
    if isinstance(value, Enum):
        return str(value.value)
    return "none" if value is None else str(value)
