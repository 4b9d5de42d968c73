"""Reads dates and times from text, in the forms that Spark accepts when no format is specified. Pure.

    date   [+-]yyyy…[-[m]m[-[d]d[ *|T*]]]                    days since 1970
    time   [+-]yyyy…[-[m]m[-[d]d[( |T)[h]h[:[m]m[:[s]s[.fraction][zone]]]]]]     microseconds since 1970

The calendar is proleptic Gregorian. White space and control characters around a text are ignored. A fraction is cut
after six digits. Spark also accepts a time without a date, and takes it to be today's. This module refuses it, because
a task that is retried after midnight would read another day.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

DAY_MIN, DAY_MAX = -(1 << 31), (1 << 31) - 1
US_MIN, US_MAX = -(1 << 63), (1 << 63) - 1
OFFSET_HOURS_MAX = 18  # java.time.ZoneOffset's

_AROUND = "".join(map(chr, (*range(0x21), 0x7F)))
_DATE = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_DAYS = re.compile(r"\+?\d{1,10}|-\d{1,3}")
_TIME = re.compile(
    r"([+-]?)([0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9].*)?)?)?)?)?)?",
    re.DOTALL,
)
_OFFSET = re.compile(r"([+-])([0-9]{1,2}|[0-9]{2}(?::?[0-9]{2}){1,2})")
_OFFSET_SHORT = re.compile(r"([+-])([0-9]{1,2}):([0-9]{1,2})")
_SHORT_IDS = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "EST": "-05:00", "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia",
    "MST": "-07:00", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip
"""java.time.ZoneId.SHORT_IDS."""


def day_of(text: str) -> int:
    """Return days since 1970. A number that is not a year counts as days, as in Spark 1.5. Raises ValueError."""
    inside = text.strip(_AROUND)
    match = _DATE.fullmatch(inside)
    if match is not None:
        sign, year, month, day = match.groups()
        days = _days(int(sign + year), int(month or 1), int(day or 1))
    elif _DAYS.fullmatch(text):
        days = int(text)
    else:
        raise ValueError("not a date")
    if not DAY_MIN <= days <= DAY_MAX:
        raise ValueError("a date out of range")
    return days


def time_of(text: str, zone: str) -> int:
    """Return microseconds since 1970 UTC. A text without a zone is taken to be in `zone`. Raises ValueError."""
    local_us, own = _parse(text)
    place = own or zone
    return _within(local_us - _offset_us(place, local_us))


def local_time_of(text: str) -> int:
    """Return microseconds since 1970 on a clock without a zone. Raises ValueError if the text names a zone."""
    local_us, own = _parse(text)
    if own is not None:
        raise ValueError("a TIMESTAMP_NTZ cannot have a zone")
    return _within(local_us)


def check_zone(name: str) -> str:
    """Return `name`. Raises ValueError unless it is the name or the offset of a zone."""
    _zone(name)
    return name


def _within(us: int) -> int:
    if not US_MIN <= us <= US_MAX:
        raise ValueError("a time out of range")
    return us


def _parse(text: str) -> tuple[int, str | None]:
    """Return microseconds since 1970 on the text's own clock, and the zone that the text names, or None."""
    match = _TIME.fullmatch(text.strip(_AROUND))
    if match is None:
        raise ValueError("not a time")
    sign, year, month, day, hour, minute, second, fraction, zone = match.groups()
    days = _days(int(sign + year), int(month or 1), int(day or 1))
    hours, minutes, seconds = int(hour or 0), int(minute or 0), int(second or 0)
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError("not a time of day")
    micros = int((fraction or "")[:6].ljust(6, "0"))
    whole_s = days * 86_400 + hours * 3_600 + minutes * 60 + seconds
    return whole_s * 1_000_000 + micros, None if zone is None else zone.strip(_AROUND)


def _days(year: int, month: int, day: int) -> int:
    """Return the days since 1970 of a date in any year."""
    if not 1 <= month <= 12 or not 1 <= day <= _month_days(year, month):
        raise ValueError("not a day of the calendar")
    shifted = year - (month <= 2)  # count years from March, so that a leap day is the last day of its year
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return shifted * 365 + shifted // 4 - shifted // 100 + shifted // 400 + of_year - 719_468


def _month_days(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def _offset_us(place: str, local_us: int) -> int:
    """Return how far the clocks of `place` are ahead of UTC when they show `local_us`.

    The first occurrence counts if the clocks show that time twice. If they skip it, the offset before the gap counts.
    """
    zone = _zone(place)
    if isinstance(zone, timedelta):
        return zone // timedelta(microseconds=1)
    try:
        local = datetime(1970, 1, 1) + timedelta(microseconds=local_us)
    except OverflowError:
        raise ValueError("a year for which no rules of time zones exist") from None
    offset = zone.utcoffset(local)
    assert offset is not None, "a zone has an offset at any time"
    return offset // timedelta(microseconds=1)


@lru_cache(256)
def _zone(name: str) -> timedelta | tzinfo:
    """Return a fixed offset, or a zone with rules. Raises ValueError."""
    full = _SHORT_IDS.get(name, name)
    if full in ("Z", "UTC", "GMT", "UT"):
        return timedelta(0)
    short = _OFFSET_SHORT.fullmatch(full)
    if short is not None:  # +h:mm and +hh:m, from before Spark 3
        full = f"{short[1]}{short[2]:0>2}:{short[3]:0>2}"
    offset = _OFFSET.fullmatch(full.removeprefix("UTC").removeprefix("GMT").removeprefix("UT"))
    if offset is not None:
        return _fixed(offset[1], offset[2].replace(":", ""))
    try:
        return ZoneInfo(full)
    except (ValueError, OSError, KeyError):
        raise ValueError(f"unknown zone {name!r:.40}") from None


def _fixed(sign: str, digits: str) -> timedelta:
    if len(digits) == 1:
        digits = "0" + digits
    hours, minutes, seconds = int(digits[:2]), int(digits[2:4] or 0), int(digits[4:] or 0)
    offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if minutes > 59 or seconds > 59 or offset > timedelta(hours=OFFSET_HOURS_MAX):
        raise ValueError("not an offset of a zone")
    return -offset if sign == "-" else offset
