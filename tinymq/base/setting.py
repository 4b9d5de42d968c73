"""The declaration of a setting: its values as text, as numbers and on the wire, and its place in the docs.

`tinymq/base/topic_config.py` declares the settings of a topic with these values. Pure: no setting is known here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from tinymq.base.errors import InvalidConfig, InvalidName
from tinymq.base.quantity import quantity
from tinymq.base.types import check_topic_name

NO_BOUND_WIRE = -1  # None in a message and in stored bytes; 0 cannot be it, because proto3 does not write zeros
NUMBER_CHARS_MAX = 20
TEXT_CHARS_MAX = 100  # of a wrong value, in an error


_TIMES = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000))


class Unit(Enum):
    """What a number counts. The command line accepts and prints milliseconds and bytes with a unit, such as 7d."""

    MILLISECONDS = "milliseconds"
    BYTES = "bytes"
    RECORDS = "records"
    DELIVERIES = "deliveries"
    MEMBERS = "members"


_COUNTED = {Unit.BYTES: "byte", Unit.RECORDS: "record", Unit.DELIVERIES: "delivery", Unit.MEMBERS: "member"}


class Clause(Enum):
    """The sentence of a topic's promise that a setting changes."""

    REMOVAL = "removal"  # "It may be removed ..."
    CAPACITY = "capacity"  # "A partition with ... refuses writes."


class Absent(Enum):
    """The meaning of a missing field of a stored message."""

    NOT_POSSIBLE = 0  # the first release stored the field already: 0 is the number 0, and "" is no choice


NOT_POSSIBLE: Final = Absent.NOT_POSSIBLE


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number from `least` to `most`. Some values may or must be written as words."""

    unit: Unit
    least: int
    most: int
    zero_word: str = ""  # the word for 0; "": 0 is written as a digit
    none_word: str = ""  # the word for None, which means no bound; "": the setting cannot be None
    usual_word: str = ""  # a word for `usual`; "" if it needs no word
    usual: int = 0  # the number that most users want

    def parse(self, name: str, text: str) -> int | None:
        """Raises InvalidConfig for text that is no number. Does not check the range."""
        if text and text == self.none_word:
            return None
        if text and text == self.zero_word:
            return 0
        if text and text == self.usual_word:
            return self.usual
        if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_CHARS_MAX):
            hint = f"{name} is a whole number of {self.unit.value}"
            raise InvalidConfig(f"{name} is {text[:TEXT_CHARS_MAX]!r}", hint=hint)
        number = int(text)
        if self.zero_word and not number:
            hint = f"write {name}={self.zero_word}, or a number of {self.unit.value}"
            raise InvalidConfig(f"{name} is 0", hint=hint)
        return number

    def text(self, number: int | None) -> str:
        """The inverse of `parse`."""
        if number is None:
            return self.none_word
        return self.zero_word if self.zero_word and not number else str(number)

    def spelled(self, number: int) -> str:
        """The number with its unit, as a sentence has it: "7 days", "1 record"."""
        if self.unit is Unit.MILLISECONDS:
            whole = (quantity(number // size, unit) for unit, size in _TIMES if number % size == 0)
            return next(whole, f"{number} ms")
        return quantity(number, _COUNTED[self.unit])

    def check(self, shown: str, number: int | None) -> None:
        """Raises InvalidConfig for a number out of range."""
        if number is not None and not self.least <= number <= self.most:
            raise InvalidConfig(f"{shown} is {number}", hint=f"{shown} is between {self.least} and {self.most}")

    def to_wire(self, number: int | None) -> int:
        return NO_BOUND_WIRE if number is None else number

    def from_wire(self, number: int) -> int | None:
        return None if self.none_word and number == NO_BOUND_WIRE else number


@dataclass(frozen=True, slots=True)
class Choice:
    """One member of an enumeration, written as the member's value."""

    kind: type[Enum]

    @property
    def texts(self) -> list[str]:
        return [str(member.value) for member in self.kind]

    def parse(self, name: str, text: str) -> Enum:
        """Raises InvalidConfig."""
        try:
            return self.kind(text)
        except ValueError:
            hint = f"{name} is {' or '.join(self.texts)}"
            raise InvalidConfig(f"{name} is {text[:TEXT_CHARS_MAX]!r}", hint=hint) from None

    def text(self, member: Enum) -> str:
        return str(member.value)

    def spelled(self, member: Enum) -> str:
        return str(member.value)

    def check(self, shown: str, member: Enum) -> None:
        """Accept every member: an enumeration has no range."""

    def to_wire(self, member: Enum) -> str:
        return str(member.value)

    def from_wire(self, text: str) -> Enum:
        """Raises InvalidConfig for a choice that only another build knows."""
        try:
            return self.kind(text)
        except ValueError as error:
            raise InvalidConfig(f"a topic config of another build: {str(error)[:TEXT_CHARS_MAX]}") from None


@dataclass(frozen=True, slots=True)
class DelayList:
    """Times in milliseconds, one after the other, each from `least` to `most`; written with commas, or "none"."""

    least: int
    most: int
    count_max: int

    def parse(self, name: str, text: str) -> tuple[int, ...]:
        """Raises InvalidConfig for text that is no list of numbers. Does not check the range."""
        if text == "none":
            return ()
        parts = text.split(",", self.count_max)
        if not all(part.isascii() and part.isdigit() and len(part) <= NUMBER_CHARS_MAX for part in parts):
            hint = f"{name} is a list of milliseconds such as 10000,60000, or none"
            raise InvalidConfig(f"{name} is {text[:TEXT_CHARS_MAX]!r}", hint=hint)
        return tuple(map(int, parts))

    def text(self, delays: tuple[int, ...]) -> str:
        return ",".join(map(str, delays)) or "none"

    def spelled(self, delays: tuple[int, ...]) -> str:
        return self.text(delays)

    def check(self, shown: str, delays: tuple[int, ...]) -> None:
        """Raises InvalidConfig for too many times, or for one out of range."""
        if len(delays) > self.count_max or not all(self.least <= delay <= self.most for delay in delays):
            hint = f"{shown} has up to {self.count_max} times between {self.least} and {self.most}"
            raise InvalidConfig(f"{shown} is {self.text(delays)[:TEXT_CHARS_MAX]}", hint=hint)

    def to_wire(self, delays: tuple[int, ...]) -> str:
        return self.text(delays)

    def from_wire(self, text: str) -> tuple[int, ...]:
        return self.parse("a stored list", text)


@dataclass(frozen=True, slots=True)
class TopicName:
    """The name of a topic; None is written as "none", and "" stands for a name that is derived."""

    def parse(self, name: str, text: str) -> str | None:
        return None if text == "none" else text

    def text(self, topic: str | None) -> str:
        return "none" if topic is None else topic

    def spelled(self, topic: str | None) -> str:
        return self.text(topic)

    def check(self, shown: str, topic: str | None) -> None:
        """Raises InvalidConfig for a name that no topic of a user can have."""
        if topic:
            try:
                check_topic_name(topic)
            except InvalidName as error:
                raise InvalidConfig(f"{shown}: {error.message}", hint=error.hint) from None

    def to_wire(self, topic: str | None) -> str:
        return self.text(topic)

    def from_wire(self, text: str) -> str | None:
        return self.parse("", text)


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that tinymq knows of one setting, except its Python type and its default: its field has these."""

    kind: Number | Choice | DelayList | TopicName
    help: str  # its row in docs/topics.md
    name: str = ""  # as users write it; "": the name of the field
    field: str = ""  # of the dataclass and of the message; `declared` fills it in
    example: str = ""  # its value in `--help`
    clause: Clause | None = None
    phrase: str = "{}"  # the setting's part of that sentence; {}: its value in words
    level: int = 1  # the feature level (tinymq/format/feature_level.py) from which on a topic may have it
    absent: object = NOT_POSSIBLE
    """The value for a topic that was stored before this setting existed.

    proto3 reads 0 or "" there, so 0 must not stand for any other value. Choose the value that keeps old topics as they
    were, such as None for no bound. An older build drops the field when it stores the topic again, so a new setting
    needs a feature level (docs/registry.md).
    """

    def declared(self, field: str) -> Setting:
        """This setting as the metadata of the dataclass field `field`. Checks the declaration."""
        least = self.kind.least if isinstance(self.kind, Number) else None
        if self.absent not in (NOT_POSSIBLE, 0) and least is not None:
            assert least > 0, f"{field}: 0 is in range, and a stored 0 means {self.absent!r}"
        first = self.absent is NOT_POSSIBLE
        assert first == (self.level == 1), (
            f"{field}: a setting after the first release has `absent` and a level above 1"
        )
        return replace(self, name=self.name or field, field=field)

    @property
    def unit(self) -> Unit | None:
        return self.kind.unit if isinstance(self.kind, Number) else None

    def parse(self, text: str) -> Any:
        """The value that a user writes as `text`. Raises InvalidConfig; the range is `check`'s to hold."""
        return self.kind.parse(self.name, text)

    def text(self, value: Any) -> str:
        """The inverse of `parse`."""
        return self.kind.text(value)

    def spelled(self, value: Any) -> str:
        """The value in a sentence."""
        return self.kind.spelled(value)

    def check(self, value: Any) -> None:
        """Raises InvalidConfig for a value out of range."""
        # `sync` is the one name that does not show its unit.
        unit = f", in {self.unit.value}," if self.unit and self.name != self.field else ""
        self.kind.check(f"{self.name}{unit}", value)

    def to_wire(self, value: Any) -> int | str:
        """The value of the setting's field in a message or in stored bytes."""
        if self.absent is not NOT_POSSIBLE and value == self.absent:
            return 0 if isinstance(self.kind, Number) else ""
        return self.kind.to_wire(value)

    def from_wire(self, stored: Any) -> Any:
        """The inverse of `to_wire`. Raises InvalidConfig."""
        if self.absent is not NOT_POSSIBLE and not stored:
            return self.absent
        return self.kind.from_wire(stored)

    def usage(self) -> str:
        """The setting in `--help`: "retention_ms=7d"."""
        example = self.example or ("|".join(self.kind.texts) if isinstance(self.kind, Choice) else "")
        return f"{self.name}={example}" if example else self.name
