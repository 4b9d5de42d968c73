"""The settings of a client, a producer, a reader and a queue, as small frozen values that are checked once. No I/O.

The fields are the keyword arguments of Client, producer(), reader() and queue(). An unknown argument is an error that
names the nearest field. Units come last in names.
"""

from __future__ import annotations

import difflib
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from tinymq.base.config import MIB, TLS_SCHEME, Limits
from tinymq.base.errors import InvalidConfig, InvalidName
from tinymq.base.identity.token import SecretText
from tinymq.base.types import check_consumer_name
from tinymq.format.batch import Codec

Partitioner = Callable[[bytes | None, int], int]
"""(key, number of partitions) -> partition. The thread that sends calls it. It must not block."""

Compression = Literal["none", "lz4", "zstd"]
Acks = Literal["quorum", "leader", "none"]
Replica = Literal["leader", "follower", "nearest", "any"]
OnTrimmed = Literal["raise", "skip"]
Processing = Literal["at_least_once", "at_most_once"]
Partitioning = Literal["keyed", "round_robin", "sticky"]

COMPRESSION = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
ACKS: tuple[str, ...] = get_args(Acks)
PARTITIONERS: tuple[str, ...] = get_args(Partitioning)
REPLICAS: tuple[str, ...] = get_args(Replica)
ON_TRIMMED: tuple[str, ...] = get_args(OnTrimmed)
PROCESSING: tuple[str, ...] = get_args(Processing)
INFLIGHT_BATCHES_MAX = 5  # brokers remember this many batches per producer, to recognise those that are sent again
MILLISECONDS_MAX = 1_000_000_000  # eleven days
SWITCH_INTERVAL_MS_MIN = 0.01  # below this the interpreter would do little but switch
HOST_LENGTH_MAX = 200
TOKEN_VARIABLE = "TINYMQ_TOKEN"  # of the environment: the token, if a program names none
TOKEN_CHARS_MAX = 8192
TLS_CA_VARIABLE = "TINYMQ_TLS_CA"  # of the environment: a file with the brokers' authorities, if a program names none
BUFFER_BYTES_MAX = 1 << 40
PREFETCH_MAX = 10_000  # records of one partition that wait at a worker

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
        if not number or not least <= value <= MILLISECONDS_MAX:  # NaN is not, either
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
    """The settings of a whole client.

    request_timeout_ms: the deadline of every call without a `timeout` of its own. A producer looks for a topic for so
        long at most.
    connect_timeout_ms: how long a client that no broker has served yet goes on while every address refuses, or says
        that its cluster is not formed. Then the call raises, before its own deadline. Raise this for a program that
        starts before its brokers. A client that was served once waits for its brokers up to each call's deadline.
    attempt_timeout_ms: when a broker is silent for so long, the client tries another broker or a new connection.
    metadata_max_age_ms: the client asks for fresh metadata when its own is older.
    rack: the rack of this process. `replica="nearest"` prefers brokers in the same rack.
    client_id: the client's name for quotas and as a channel's consumer; if empty, host and process.
    limits: the bounds of batches and messages. Pass the brokers' own if they are not the defaults.
    switch_interval_ms: for Client only. When its thread starts, the client shortens the interpreter's switch interval
        to this, for the whole process. Other threads that compute then make way for the client sooner. Python's own
        interval is 5 ms. With None the client leaves it alone.
    token: who this client is, for brokers that check callers (docs/security.md); if empty, the environment variable
        TINYMQ_TOKEN. Nothing shows it: not `repr`, no error and no log.
    token_file: a file with the token instead, which is read again when it changes: such as one that Kubernetes or an
        agent renews. Others may not read it.
    token_without_tls: send the token also to other machines over connections that others can read.
    tls: connect with TLS only. "tinymq+tls://" in front of the servers says the same.
    tls_dir: a directory with ca.crt and, if brokers want a certificate of this client, tls.crt and tls.key. New files
        are used from the next connection on.
    tls_ca: a file with the certificates of the authorities that sign brokers' certificates, instead of tls_dir's
        ca.crt; if both are empty, the environment variable TINYMQ_TLS_CA.
    tls_server_name: a name that every broker's certificate has, instead of the host that the client dials.

        with Client("localhost:7070", request_timeout_ms=5_000, client_id="billing") as mq:
            print(mq.servers)
    """

    request_timeout_ms: float = 30_000
    connect_timeout_ms: float = 3_000
    attempt_timeout_ms: float = 3_000
    metadata_max_age_ms: float = 30_000
    rack: str = ""
    client_id: str = ""
    limits: Limits = field(default_factory=Limits)
    switch_interval_ms: float | None = None
    token: str | SecretText = field(default="", repr=False)
    token_file: str = ""
    token_without_tls: bool = False
    tls: bool = False
    tls_dir: str = ""
    tls_ca: str = ""
    tls_server_name: str = ""

    def __post_init__(self) -> None:
        token = check_token(self.token, with_environment=not self.token_file)
        object.__setattr__(self, "token", token)
        if token and self.token_file:
            raise InvalidConfig("a token and a token_file", hint="pass one of them")
        self._check_tls()
        _kind(self, "token_without_tls", bool)
        if self.switch_interval_ms is not None:
            _milliseconds(self, "switch_interval_ms", least=SWITCH_INTERVAL_MS_MIN)
        _milliseconds(self, "request_timeout_ms", "attempt_timeout_ms", "metadata_max_age_ms")
        _milliseconds(self, "connect_timeout_ms", least=0)
        _kind(self, "rack", str)
        _kind(self, "client_id", str)
        try:
            check_consumer_name(self.client_id or "none")
        except InvalidName as error:
            raise InvalidConfig(f"client_id={self.client_id!r:.300}", hint=error.message) from None
        _kind(self, "limits", Limits)

    def _check_tls(self) -> None:
        _kind(self, "tls", bool)
        for name in ("tls_dir", "tls_ca"):
            value = getattr(self, name)
            if not isinstance(value, str | Path):
                raise InvalidConfig(f"{name}={value!r:.300}", hint="pass a path")
            object.__setattr__(self, name, str(value) if value else "")
        _kind(self, "tls_server_name", str)
        if not self.tls and (self.tls_dir or self.tls_ca or self.tls_server_name):
            raise InvalidConfig("TLS is configured, and not used", hint=f"write {TLS_SCHEME} in front of the servers")
        if self.tls and not (self.tls_dir or self.tls_ca):
            object.__setattr__(self, "tls_ca", os.environ.get(TLS_CA_VARIABLE, ""))
            if not self.tls_ca:
                hint = f"pass tls_ca=, a file, or tls_dir=, or set {TLS_CA_VARIABLE}"
                raise InvalidConfig("TLS needs the certificate of the brokers' authority", hint=hint)


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """The settings of one producer.

    linger_ms: how long a record may wait for other records of its batch.
    batch_bytes_max: the size at which a batch is sent without more waiting.
    compression: "none", "lz4" or "zstd".
    buffer_bytes_max: the size of all records that are not acknowledged yet. Beyond it `send` blocks up to block_ms_max,
        then raises BufferFull.
    block_ms_max: the longest time that `send` blocks, for room or to find its topic. With 0 it never waits for room.
    acks: when a record counts as delivered. "quorum": it is on a majority of disks. "leader": it is in the leader's
        memory, and lost if the leader dies at once. "none": no broker confirms it, any failure loses it, and its offset
        is -1.
    idempotent: a batch that is sent again is never written twice. Without this, a batch of unknown outcome is not sent
        again and ends as OutcomeUnknown. It is off when acks is "none".
    delivery_timeout_ms: from `send` to the end of the delivery, with all attempts.
    inflight_batches_max: batches per partition that are sent and not acknowledged.
    partitioner: "keyed" (CRC32 of the key; records without a key: one partition per batch), "round_robin", "sticky" or
        a callable.

        with mq.producer(linger_ms=20, compression="zstd", acks="quorum") as producer:
            producer.send("orders", b"...")
    """

    linger_ms: float = 5
    batch_bytes_max: int = MIB
    compression: Compression = "none"
    buffer_bytes_max: int = 64 * MIB
    block_ms_max: float = 60_000
    acks: Acks = "quorum"
    idempotent: bool = True
    delivery_timeout_ms: float = 60_000
    inflight_batches_max: int = INFLIGHT_BATCHES_MAX
    partitioner: Partitioning | Partitioner = "keyed"

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


def is_numbered(config: ProducerConfig) -> bool:
    """Does every batch of the producer carry a producer id and a sequence number?"""
    return config.idempotent and config.acks != "none"


def inflight_max(config: ProducerConfig) -> int:
    """The bound on batches in flight per partition. Without sequence numbers two of them could change places."""
    return config.inflight_batches_max if is_numbered(config) else 1


@dataclass(frozen=True, slots=True)
class ReaderConfig:
    """The settings of one reader.

    replica: which replica serves: "leader", "follower" (the leader only when no follower can), "nearest" (same rack,
        then the quickest), "any" (spread over all).
    fetch_bytes_max: the size of one fetch's reply. A larger batch still comes, alone.
    fetch_min_bytes: a broker waits up to fetch_wait_ms until it has so much.
    fetch_wait_ms: how long a broker may wait before it answers a fetch; up to four times as long for a partition
        without new records.
    buffer_bytes_max: the size of the records that are fetched and not taken yet.
    unreachable_ms_max: the reader raises an error when no replica of a partition serves it for so long.
    stale_ms_max: when a follower has had nothing new for so long, other replicas are asked whether there is more.
    on_trimmed: when retention, capacity or a trim removed the next record: "raise" OffsetOutOfRange, or "skip" to the
        first record that is kept and count the skipped ones. Records that were lost always raise.

        for message in mq.reader("orders", end="latest", replica="follower", on_trimmed="skip"):
            print(message.value)
    """

    replica: Replica = "leader"
    fetch_bytes_max: int = MIB
    fetch_min_bytes: int = 1
    fetch_wait_ms: float = 500
    buffer_bytes_max: int = 32 * MIB
    unreachable_ms_max: float = 60_000
    stale_ms_max: float = 2_000
    on_trimmed: OnTrimmed = "raise"

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
    """The settings of one queue.

    auto_commit: the messages that were handed out are committed after the application has asked for more. Without it,
        only `commit` commits.
    commit_interval_ms: how often such commits are sent. After a crash, the messages of one interval are delivered
        again.
    The others: see ReaderConfig.

        with mq.queue("orders", channel="audit", commit_interval_ms=100) as queue:
            print(queue.poll())
    """

    auto_commit: bool = True
    commit_interval_ms: float = 500
    on_trimmed: OnTrimmed = "raise"
    replica: Replica = "leader"
    fetch_bytes_max: int = MIB
    fetch_wait_ms: float = 500
    buffer_bytes_max: int = 32 * MIB

    def __post_init__(self) -> None:
        _kind(self, "auto_commit", bool)
        _milliseconds(self, "commit_interval_ms")
        reader_config(self)


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """The settings of one consumer.

    processing: "at_least_once" commits a message after the application has asked for the next one; "at_most_once"
        commits messages before they are handed out, up to commit_records_max at a time.
    auto_commit: without it, only `commit` commits.
    commit_interval_ms: how often commits are sent. After a crash, the messages of one interval are delivered again.
    The others: see ReaderConfig.

        with mq.consumer("orders", group="at-most", processing="at_most_once") as consumer:
            print(consumer.poll(timeout=5.0))
    """

    processing: Processing = "at_least_once"
    auto_commit: bool = True
    commit_interval_ms: float = 500
    commit_records_max: int = 500
    on_trimmed: OnTrimmed = "skip"
    replica: Replica = "leader"
    fetch_bytes_max: int = MIB
    fetch_wait_ms: float = 500
    buffer_bytes_max: int = 32 * MIB
    unreachable_ms_max: float = 60_000

    def __post_init__(self) -> None:
        _one_of("processing", self.processing, PROCESSING)
        _kind(self, "auto_commit", bool)
        _milliseconds(self, "commit_interval_ms")
        _count(self, "commit_records_max")
        reader_config(self)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The settings of one worker of a queue group.

    prefetch_records, prefetch_bytes: what each partition's leader may lease to this worker ahead of its handlers.
    max_handler_ms: a job that is in hand for so long is not extended any more, and goes to another worker. A job that
        was leased ahead and has waited for so long goes back, uncharged.

        with mq.worker("emails", group="mailer", prefetch_records=10, max_handler_ms=600_000) as worker:
            print(worker.poll(timeout=5.0))
    """

    prefetch_records: int = 500
    prefetch_bytes: int = 8 * MIB
    max_handler_ms: float = 12 * 3_600_000

    def __post_init__(self) -> None:
        _count(self, "prefetch_records", most=PREFETCH_MAX)
        _count(self, "prefetch_bytes")
        _milliseconds(self, "max_handler_ms")


def reader_config(config: QueueConfig | ConsumerConfig) -> ReaderConfig:
    """The settings of the fetches behind a queue or a consumer."""
    shared = {each.name for each in fields(ReaderConfig)} & {each.name for each in fields(config)}
    return ReaderConfig(**{name: getattr(config, name) for name in shared})


def check_token(token: object, *, with_environment: bool = True) -> SecretText:
    """Return a token, or that of the environment. Raises InvalidConfig, which does not show it."""
    text = token.reveal() if isinstance(token, SecretText) else token
    if text == "" and with_environment:
        text = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not isinstance(text, str):
        raise InvalidConfig("token is no text", hint="pass the text that tinymq user token printed")
    if len(text) > TOKEN_CHARS_MAX or not (text.isascii() and text.isprintable()) or " " in text:
        raise InvalidConfig("this is not a token", hint="pass the text that tinymq user token printed, as it is")
    return SecretText(text)


def default_client_id() -> str:
    """A name made of host and process id."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:HOST_LENGTH_MAX]
    return f"{host}-{os.getpid()}"


def configure(kind: type[C], settings: Mapping[str, object]) -> C:
    """Return `kind(**settings)`. Raises InvalidConfig; for an unknown setting it names the nearest known one."""
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise InvalidConfig(f"unknown setting {name!r}", hint=hint)
    return kind(**settings)
