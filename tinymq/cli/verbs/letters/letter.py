"""A dead letter as the command line shows it. Texts of workers and records never reach the terminal unescaped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tinymq.cli.common.escapes import visible, visible_bytes
from tinymq.cli.common.template import iso

if TYPE_CHECKING:
    from tinymq.client import Message

VALUE_CHARS_MAX = 2000


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter, or a record that has no headers of one."""

    topic: str
    partition: int
    offset: int
    origin: str  # TOPIC/PARTITION offset N; "": the record is no dead letter
    group: str
    deliveries: str
    cause: str  # what ended the last delivery: nack, reject, lease_expired, session_ended; "": not known
    reason: str
    traceback: str
    first_failure: str
    last_failure: str
    lost: bool
    cut: str
    settled: bool
    key: str | None
    value: str | None
    headers: tuple[tuple[str, str], ...]  # of the original

    @property
    def state(self) -> str:
        return "lost" if self.lost else "settled" if self.settled else "waits"


def read_letter(message: Message, settled: bool) -> Letter:
    """Read a record of a topic of dead letters."""
    own = {name.removeprefix("tinymq-"): value for name, value in message.headers if name.startswith("tinymq-")}

    def text(name: str) -> str:
        return (own.get(name) or b"").decode("utf-8", "backslashreplace")

    place = f"{text('source-topic')}/{text('source-partition')} offset {text('source-offset')}"
    return Letter(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        origin=place if "source-topic" in own else "",
        group=text("group"),
        deliveries=text("deliveries"),
        cause=text("cause"),
        reason=text("reason"),
        traceback=text("traceback"),
        first_failure=_time(text("first-failure")),
        last_failure=_time(text("last-failure")),
        lost=own.get("lost") == b"true",
        cut=text("cut"),
        settled=settled,
        key=_text(message.key),
        value=_text(message.value),
        headers=tuple((n, _text(v) or "") for n, v in message.headers if not n.startswith("tinymq-")),
    )


def document(letter: Letter) -> dict[str, Any]:
    """The letter as JSON has it."""
    return {**asdict(letter), "state": letter.state, "headers": [list(header) for header in letter.headers]}


def details(letter: Letter) -> Iterator[str]:
    """The letter as lines. Each line of a text that a worker wrote begins with the name of its group, so that it cannot
    pass for another line."""
    yield f"{visible(letter.topic)}/{letter.partition} offset {letter.offset}: {letter.state}"
    yield f"source: {visible(letter.origin) or 'unknown: this is no dead letter'}"
    for name, value in (
        ("group", letter.group), ("failed deliveries", letter.deliveries), ("cause", letter.cause),
        ("first failure", letter.first_failure),
        ("last failure", letter.last_failure), ("left out", letter.cut),
    ):  # fmt: skip
        if value:
            yield f"{name}: {visible(value)}"
    if letter.key is not None:
        yield f"key: {letter.key[:VALUE_CHARS_MAX]}"
    for header, value in letter.headers:
        yield f"header {visible(header)}: {value[:VALUE_CHARS_MAX]}"
    yield f"value: {'none' if letter.value is None else letter.value[:VALUE_CHARS_MAX]}"
    group = visible(letter.group) or "?"
    for line in letter.reason.splitlines():
        yield f"{group}: {visible(line)}"
    for line in letter.traceback.splitlines():
        yield f"{group} | {visible(line)}"


def _text(data: bytes | None) -> str | None:
    return None if data is None else visible_bytes(data).decode()


def _time(text: str) -> str:
    try:
        return iso(int(text)) if text else ""
    except (ValueError, OverflowError):
        return text
