"""The log of a broker's process: one event per line on stderr, as JSON or key=value, without control characters.

Clients and other brokers choose some of the logged text (names, ids, reasons), and a person may read it on a terminal.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog
from structlog.typing import Processor

from tinymq.cli.common.escapes import visible, visible_json
from tinymq.cli.common.options import LogFormat
from tinymq.cli.common.output import log_stream

GROUP_ID = re.compile(r"[0-9a-f]{8}/\d+")  # as GroupId prints it
NAMES_MAX = 100_000  # remembered, so that the log names partitions that were deleted a moment ago
LIBRARIES = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class PartitionNames:
    """Adds the topic and the partition to each event of a replica, which knows only the id of its group."""

    def __init__(self) -> None:
        self.lookup: Callable[[str], str | None] = lambda group: None  # of a broker, once there is one
        self._known: dict[str, str] = {}

    def __call__(self, _logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        group = event.get("group")
        if isinstance(group, str) and "partition" not in event and GROUP_ID.fullmatch(group):
            name = self.lookup(group) or self._known.get(group)
            if name is not None:
                if len(self._known) >= NAMES_MAX:
                    self._known.clear()
                event["partition"] = self._known[group] = name
        return event


def set_up(log_format: LogFormat, names: PartitionNames) -> None:
    """Log to stderr, including the warnings and errors of libraries."""
    structlog.configure(
        processors=[
            names,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *renderers(log_format),
        ],
        logger_factory=structlog.WriteLoggerFactory(log_stream()),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(log_stream())
    handler.setFormatter(Formatter(LIBRARIES))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def renderers(log_format: LogFormat) -> list[Processor]:
    """Return the processors that render an event as a line."""
    if log_format == "json":
        return [structlog.processors.JSONRenderer(serializer=_json)]
    return [structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]), _visible]


class Formatter(logging.Formatter):
    """Formats the log of libraries: each message is one line, and its traceback follows on lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return visible(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join(map(visible, super().formatException(ei).split("\n")))


def _json(event: Any, **_: Any) -> str:
    return visible_json(event)


def _visible(_logger: Any, _method: str, line: str | MutableMapping[str, Any]) -> str:
    return visible(str(line))
