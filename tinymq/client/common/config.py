"""What a client can be told, as small frozen values checked once. No I/O.

Keyword arguments of Client, producer() and reader() are the fields here; an unknown one is an error that
names the nearest. Units come last in names.
"""

from __future__ import annotations

import difflib
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from tinymq.base.config import MIB, Limits, format_address, parse_address
from tinymq.base.errors import InvalidConfig, InvalidName
from tinymq.base.types import check_consumer_name
from tinymq.format.batch import Codec

Partitioner = Callable[[bytes | None, int], int]
"""(key, number of partitions) -> partition. Called by the thread that sends; must not block."""

COMPRESSION = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
ACKS = ("quorum", "leader", "none")
PARTITIONERS = ("keyed", "round_robin", "sticky")
REPLICAS = ("leader", "follower", "nearest", "any")
ON_TRIMMED = ("raise", "skip")
INFLIGHT_BATCHES_MAX = 5  # brokers remember this many batches per producer: more could not be told apart
MILLISECONDS_MAX = 1_000_000_000  # eleven days
SWITCH_INTERVAL_MS_MIN = 0.01  # below this the interpreter would do little but switch
HOST_LENGTH_MAX = 200
BUFFER_BYTES_MAX = 1 << 40

C = TypeVar("C")


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        near = difflib.get_close_matches(str(value), allowed, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(map(repr, allowed))}"
        raise InvalidConfig(f"{name}={value!r}", hint=hint)


def _milliseconds(config: Any, *names: str, least: float = 1) -> None:
    for name in names:
        value = getattr(config, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not least <= value <= MILLISECONDS_MAX:  # which NaN is not, either
            hint = f"a number of {least} or more, up to {MILLISECONDS_MAX}"
            raise InvalidConfig(f"{name}={value!r}", hint=hint)


def _count(config: Any, *names: str, least: int = 1, most: int = (1 << 31) - 1) -> None:
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise InvalidConfig(f"{name}={value!r}", hint=f"a whole number of {least} or more, at most {most}")


def _kind(config: Any, name: str, kind: type) -> None:
    value = getattr(config, name)
    if not isinstance(value, kind):
        raise InvalidConfig(f"{name}={value!r}", hint=f"pass a {kind.__name__}")


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Of a whole client.

    request_timeout_ms: deadline of every call that names none of its own; the most that a producer looks for a topic.
    attempt_timeout_ms: silence of one broker after which another one, or a new connection, is tried.
    rack: where this process runs; `replica="nearest"` prefers brokers of the same rack.
    client_id: for quotas, and the name of a channel's consumer; if empty, host and process.
    switch_interval_ms: Client alone. Shorten the interpreter's switch interval to this, for the whole process, when the
        client starts its thread. Another thread that computes then makes way for the client sooner. Python's own is
        5 ms, and None leaves it alone.
    """

    request_timeout_ms: float = 30_000
    attempt_timeout_ms: float = 3_000
    metadata_max_age_ms: float = 30_000
    rack: str = ""
    client_id: str = ""
    limits: Limits = field(default_factory=Limits)
    switch_interval_ms: float | None = None

    def __post_init__(self) -> None:
        if self.switch_interval_ms is not None:
            _milliseconds(self, "switch_interval_ms", least=SWITCH_INTERVAL_MS_MIN)
        _milliseconds(self, "request_timeout_ms", "attempt_timeout_ms", "metadata_max_age_ms")
        _kind(self, "rack", str)
        _kind(self, "client_id", str)
        try:
            check_consumer_name(self.client_id or "none")
        except InvalidName as error:
            raise InvalidConfig(f"client_id={self.client_id!r:.300}", hint=error.message) from None
        _kind(self, "limits", Limits)


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Of one producer.

    linger_ms: how long a record may wait for others of its batch.
    compression: "none", "lz4" or "zstd".
    buffer_bytes_max: records not yet acknowledged; over it, send blocks up to block_ms_max, then raises BufferFull.
    block_ms_max: the longest that send blocks, for room or for its topic to be found; 0: never for room.
    acks: "quorum": on a majority of disks. "leader": in the leader's memory, lost when it dies at once.
        "none": nobody answers; lost whenever anything goes wrong, and the offset is -1.
    idempotent: a resend is never written twice; without it an unclear outcome ends as OutcomeUnknown at once.
        Off when acks is "none".
    delivery_timeout_ms: from send to the end of the delivery, resends included.
    partitioner: "keyed" (CRC32 of the key; no key: one partition per batch), "round_robin", "sticky" or a callable.
    """

    linger_ms: float = 5
    batch_bytes_max: int = MIB
    compression: str = "none"
    buffer_bytes_max: int = 64 * MIB
    block_ms_max: float = 60_000
    acks: str = "quorum"
    idempotent: bool = True
    delivery_timeout_ms: float = 60_000
    inflight_batches_max: int = INFLIGHT_BATCHES_MAX
    partitioner: str | Partitioner = "keyed"

    def __post_init__(self) -> None:
        _milliseconds(self, "delivery_timeout_ms")
        _milliseconds(self, "linger_ms", "block_ms_max", least=0)
        _count(self, "batch_bytes_max")
        _count(self, "buffer_bytes_max", most=BUFFER_BYTES_MAX)
        _count(self, "inflight_batches_max", most=INFLIGHT_BATCHES_MAX)
        _one_of("compression", self.compression, tuple(COMPRESSION))
        _one_of("acks", self.acks, ACKS)
        if not callable(self.partitioner):
            _one_of("partitioner", self.partitioner, PARTITIONERS)

    @property
    def numbered(self) -> bool:
        """Batches carry a producer id and sequence."""
        return self.idempotent and self.acks != "none"

    @property
    def inflight(self) -> int:
        """Batches on their way per partition. Without sequences more than one could change places."""
        return self.inflight_batches_max if self.numbered else 1


@dataclass(frozen=True, slots=True)
class ReaderConfig:
    """Of one reader.

    replica: who serves: "leader", "follower" (the leader only when no follower can), "nearest" (same rack, then
        the quickest), "any" (spread over all).
    fetch_wait_ms: how long a broker holds an empty fetch open; up to four times as long where nothing comes.
    buffer_bytes_max: fetched and not yet taken by the application.
    unreachable_ms_max: a partition that no replica serves for this long raises.
    stale_ms_max: silence of a follower after which others are asked whether there is more.
    on_trimmed: what to do when the next record is gone, by retention, capacity or a trim: "raise" OffsetOutOfRange, or
        "skip" to the first that is kept, and count what was skipped. What was lost, and not removed, always raises.
    """

    replica: str = "leader"
    fetch_bytes_max: int = MIB
    fetch_min_bytes: int = 1
    fetch_wait_ms: float = 500
    buffer_bytes_max: int = 32 * MIB
    unreachable_ms_max: float = 60_000
    stale_ms_max: float = 2_000
    on_trimmed: str = "raise"

    def __post_init__(self) -> None:
        _one_of("replica", self.replica, REPLICAS)
        _one_of("on_trimmed", self.on_trimmed, ON_TRIMMED)
        _milliseconds(self, "unreachable_ms_max", "stale_ms_max")
        _milliseconds(self, "fetch_wait_ms", least=0)
        _count(self, "fetch_bytes_max")
        _count(self, "fetch_min_bytes", least=0)
        _count(self, "buffer_bytes_max", most=BUFFER_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Of one queue.

    auto_commit: what was handed out is committed once more is asked for. Without it, only `commit` does.
    commit_interval_ms: how often such commits are sent: what a crash delivers again.
    The others: see ReaderConfig.
    """

    auto_commit: bool = True
    commit_interval_ms: float = 500
    on_trimmed: str = "raise"
    replica: str = "leader"
    fetch_bytes_max: int = MIB
    fetch_wait_ms: float = 500
    buffer_bytes_max: int = 32 * MIB

    def __post_init__(self) -> None:
        _kind(self, "auto_commit", bool)
        _milliseconds(self, "commit_interval_ms")
        self.reader()

    def reader(self) -> ReaderConfig:
        """How its records are read."""
        return ReaderConfig(
            replica=self.replica,
            fetch_bytes_max=self.fetch_bytes_max,
            fetch_wait_ms=self.fetch_wait_ms,
            buffer_bytes_max=self.buffer_bytes_max,
            on_trimmed=self.on_trimmed,
        )


def default_client_id() -> str:
    """Host and process, as a name."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:HOST_LENGTH_MAX]
    return f"{host}-{os.getpid()}"


def configure(kind: type[C], settings: Mapping[str, object]) -> C:
    """`kind(**settings)`, or InvalidConfig naming the nearest known setting."""
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise InvalidConfig(f"unknown setting {name!r}", hint=hint)
    return kind(**settings)


def parse_servers(servers: str | Sequence[str]) -> tuple[str, ...]:
    """ "host:port,host:port" or a list of such, as addresses. Raises InvalidConfig."""
    parts = servers.split(",") if isinstance(servers, str) else servers
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise InvalidConfig(f"servers={servers!r}", hint="such as '127.0.0.1:7070', or a list of such")
    addresses = tuple(format_address(*parse_address(part.strip())) for part in parts if part.strip())
    if not addresses:
        raise InvalidConfig("no server is named", hint="such as Client('127.0.0.1:7070')")
    return addresses
