"""Topic settings as people write and read them: `retention_ms=7d`, `max_bytes=10GiB`, `retention_bytes=none`. Pure.

tinymq/base/topic_config.py declares the settings and the unit of each. This module converts texts with units to plain
numbers, and back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tinymq.base.errors import InvalidConfig, InvalidRequest
from tinymq.base.setting import Unit
from tinymq.base.topic_config import BY_NAME

MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
BYTES = {
    "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip
_MANY_UNITS = re.compile(r"(?:[0-9]{1,20}[A-Za-z]{1,3}){2,9}")
DIGITS_MAX = 20
LONG = 1000  # from this number on, a larger unit is easier to read
_WITH_UNIT = re.compile(r"([0-9]+)(?:\.([0-9]{1,6}))?([A-Za-z]+)")


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """Parse texts of the form "name=value" into the settings that the admin takes.

    Raises InvalidConfig for another form, for a setting that is given twice, and for an unknown unit.
    """
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise InvalidConfig(f"{text!r} is not a setting", hint="write name=value, such as retention_ms=7d")
        if name in settings:
            raise InvalidConfig(f"{name} is given twice", hint="--set each setting once; docs/topics.md shows them")
        if _unit(name) is Unit.MILLISECONDS and re.fullmatch(r"[1-9][0-9]{0,2}", value):
            hint = f"write the unit: {name}={value}d, {name}={value}h or {name}={value}ms"
            raise InvalidConfig(f"{name}={value} would be {value} milliseconds", hint=hint)
        settings[name] = _number(name, value)
    return settings


def _number(name: str, value: str) -> str:
    """Return `value` as a plain number if it has a unit, else unchanged."""
    match = _WITH_UNIT.fullmatch(value)
    if match is None and not _MANY_UNITS.fullmatch(value):
        return value
    unit = _unit(name)
    if unit is Unit.MILLISECONDS:
        units, examples = MILLISECONDS, "one number and one unit: 2w, 7d, 1.5h, 30m, 10s or 500ms"
    elif unit is Unit.BYTES:
        units, examples = BYTES, "one number and one unit: 1.5GiB, 64MiB or 10MB"
    else:
        return value
    if match is None:
        raise InvalidConfig(f"{name}={value} has more than one unit", hint=f"write {examples}")
    if match[3] not in units:
        raise InvalidConfig(f"{name}={value}: {match[3]!r} is not a unit of this setting", hint=f"write {examples}")
    if len(match[1]) > DIGITS_MAX:
        return value
    # Integers only: a float would round 1.1GiB and hide that it is not a whole number of bytes.
    decimals = match[2] or ""
    number, rest = divmod(int(match[1] + decimals) * units[match[3]], 10 ** len(decimals))
    if rest:
        raise InvalidConfig(
            f"{name}={value} is not a whole number of {'bytes' if units is BYTES else 'ms'}", hint=f"write {examples}"
        )
    return str(number)


def parse_seconds(text: str) -> float:
    """Parse "90", "90s", "15m" or "1.5h" into seconds. Raises InvalidRequest."""
    match = _WITH_UNIT.fullmatch(text if text[-1:].isalpha() else text + "s")
    if match is None or match[3] not in MILLISECONDS or len(text) > DIGITS_MAX:
        raise InvalidRequest(f"{text!r:.100} is not a duration", hint="write one number and one unit: 90s, 15m or 1h")
    return float(f"{match[1]}.{match[2] or 0}") * MILLISECONDS[match[3]] / 1000


def parse_bytes(text: str) -> int:
    """Parse "1000", "10MB" or "1.5GiB" into bytes. Raises InvalidRequest."""
    match = _WITH_UNIT.fullmatch(text if text[-1:].isalpha() else text + "B")
    if match is None or match[3] not in BYTES or len(text) > DIGITS_MAX:
        raise InvalidRequest(
            f"{text!r:.100} is no number of bytes", hint="write one number and one unit: 10MB or 1.5GiB"
        )
    decimals = match[2] or ""
    size = int(match[1] + decimals) * BYTES[str(match[3])]
    return int(size // 10 ** len(decimals))


def show(name: str, value: str) -> str:
    """Format `value` exactly, in the largest unit of which it is a whole number.

    A number of 1000 or more is shown in a larger unit with one decimal, if that is exact.
    """
    if not value.isdigit() or value == "0":
        return value
    unit = _unit(name)
    if unit is Unit.MILLISECONDS:
        return _shortest(int(value), {unit: MILLISECONDS[unit] for unit in ("ms", "s", "m", "h", "d")})
    if unit is Unit.BYTES:
        return _shortest(int(value), {unit: size for unit, size in BYTES.items() if unit != "KB"})
    return value


def _unit(name: str) -> Unit | None:
    setting = BY_NAME.get(name)
    return setting.unit if setting else None


def _shortest(number: int, units: dict[str, int]) -> str:
    whole = max((unit for unit, size in units.items() if number % size == 0), key=units.__getitem__)
    nearly = max((unit for unit, size in units.items() if number * 10 % size == 0), key=units.__getitem__)
    if number // units[whole] < LONG or not units[whole] < units[nearly] <= number:
        return f"{number // units[whole]}{whole}"
    tenths = number * 10 // units[nearly]
    return f"{tenths // 10}.{tenths % 10}{nearly}"
