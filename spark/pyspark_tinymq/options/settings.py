"""The options of a source, checked together: one frozen value for a batch or for a stream. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from pyspark_tinymq.options import options
from pyspark_tinymq.options.offsets import (
    EARLIEST,
    EARLIEST_TEXT,
    LATEST,
    LATEST_TEXT,
    Offsets,
    Partition,
    Place,
    first_few,
)
from pyspark_tinymq.options.options import BATCH, SINK, STREAM
from pyspark_tinymq.session.login import NO_TOKEN, Login
from tinymq.base.config import TLS_SCHEME
from tinymq.base.errors import InvalidConfig
from tinymq.client.common.servers import parse_servers

LEASE_S_MIN = 1.0
HOLD_MS = {BATCH: 60_000, STREAM: 600_000}  # Spark does not report the end of a batch; a stream may plan minutes apart
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
STREAM_ONLY = {option.name for option in options.OPTIONS if option.scopes == (STREAM,)}
_STRATEGY = "startingOffsetsByTimestampStrategy"


@dataclass(frozen=True, slots=True)
class Times:
    """A position by time, for all partitions or for each, in milliseconds since 1970.

    `or_latest`: a partition without a record as late as that gets its end, which is otherwise an error.
    """

    each: int | Offsets
    or_latest: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """The most and the least that a micro-batch takes. None: no bound."""

    rows_max: int | None = None
    bytes_max: int | None = None
    rows_min: int | None = None
    delay_s_max: float = 900.0

    @property
    def any(self) -> bool:
        return self.rows_max is not None or self.bytes_max is not None or self.rows_min is not None


@dataclass(frozen=True, slots=True)
class Values:
    """How JSON values are parsed: their columns, one of options.MODES, and the field for malformed values."""

    schema: StructType
    mode: str
    corrupt: str
    zone: str = "UTC"  # of times that name no zone


@dataclass(frozen=True, slots=True)
class Source:
    """All options of a read. Picklable."""

    servers: tuple[str, ...]
    login: Login
    topics: tuple[str, ...]
    pattern: str
    assigned: tuple[Partition, ...]
    start: Place | Times
    end: Place | Times
    fail_on_loss: bool
    tasks_min: int | None
    records_max: int | None
    limits: Limits
    headers: bool
    group: str
    replica: str
    rack: str
    replica_wait_ms: int
    unreachable_ms: int
    request_timeout_ms: int
    fetch_bytes: int
    hold_s: float  # 0: take no hold
    binding: bool  # the hold also refuses trims, and producers of a full topic
    scan_id: str  # "": generate one
    values: Values | None

    def asks_for(self, partition: Partition) -> bool:
        """Tell whether the options name this partition, which need not exist."""
        if self.pattern:
            return re.fullmatch(self.pattern, partition.topic) is not None
        return partition.topic in self.topics or partition in self.assigned


def read_source(texts: Mapping[str, str], scope: str) -> Source:
    """Return the options of a batch (BATCH) or a stream (STREAM). Raises InvalidConfig."""
    values = options.read(texts, scope)
    _check_together(values, scope)
    start, end = _start(values, scope), _end(values)
    _check_range(start, end)
    hold_s = values.get("holdMs", HOLD_MS[scope]) / 1000
    if 0 < hold_s < LEASE_S_MIN:
        raise InvalidConfig(
            f"holdMs={values['holdMs']}: the shortest hold is 1000 ms", hint="give 0, or a number from 1000 to 3600000"
        )
    return Source(
        servers=_servers(values),
        login=_login(values),
        topics=values.get("subscribe", ()),
        pattern=values.get("subscribePattern", ""),
        assigned=values.get("assign", ()),
        start=start,
        end=end,
        fail_on_loss=values.get("failOnDataLoss", True),
        tasks_min=values.get("minPartitions"),
        records_max=values.get("maxRecordsPerPartition"),
        limits=Limits(
            values.get("maxOffsetsPerTrigger"),
            values.get("maxBytesPerTrigger"),
            values.get("minOffsetsPerTrigger"),
            values.get("maxTriggerDelay", 900.0),
        ),
        headers=values.get("includeHeaders", False),
        group=_name(values, "groupId"),
        replica=values.get("replica", "follower"),
        rack=values.get("rack", ""),
        replica_wait_ms=values.get("maxReplicaWaitMs", 2_000),
        unreachable_ms=values.get("unreachableMs", 60_000),
        request_timeout_ms=values.get("requestTimeoutMs", 30_000),
        fetch_bytes=values.get("fetchBytes", 8 << 20),
        hold_s=hold_s,
        binding=hold_s > 0 and "holdMs" in values,
        scan_id=_name(values, "scanId"),
        values=_values(values),
    )


def read_schema_options(texts: Mapping[str, str]) -> tuple[bool, Values | None]:
    """Return (with headers, how values are parsed), on which the columns depend. Spark asks for the columns before it
    tells whether the read is a batch or a stream.

    Raises InvalidConfig for options that neither a batch nor a stream accepts.
    """
    values = options.read(texts, BATCH, STREAM)
    refusals: list[InvalidConfig] = []
    for scope in (BATCH, STREAM):
        try:
            source = read_source(texts, scope)
        except InvalidConfig as error:
            refusals.append(error)
        else:
            return source.headers, source.values
    raise refusals[STREAM_ONLY & values.keys() != set()]


def read_sink(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a sink that are set, by name, with `servers` as addresses. Raises InvalidConfig."""
    values = options.read(texts, SINK)
    values["login"] = _login(values)
    values["servers"] = _servers(values)
    return values


def _servers(values: Mapping[str, Any]) -> tuple[str, ...]:
    text = str(_needed(values, "servers"))
    try:
        return parse_servers(text)
    except InvalidConfig as error:
        raise InvalidConfig(f"servers={text[:200]!r}: {error.message}", hint=error.hint) from None


def _login(values: Mapping[str, Any]) -> Login:
    """Return the token and certificates of the source. Raises InvalidConfig for settings that every client would
    refuse."""
    tls = str(_needed(values, "servers")).startswith(TLS_SCHEME)
    for name in ("tlsCa", "tlsDir"):
        if name in values and not tls:
            raise InvalidConfig(
                f"{name} has no meaning without TLS", hint=f"write {TLS_SCHEME} in front of the servers"
            )
    token = values.get("token", NO_TOKEN)
    return Login(token, tls, values.get("tlsCa", ""), values.get("tlsDir", ""))


def _needed(values: Mapping[str, Any], name: str) -> Any:
    if name not in values:
        by_name = options.options_of(BATCH) | options.options_of(SINK)
        hint = f"such as .option({name!r}, {by_name[name.lower()].example!r})"
        if name == "servers":
            hint += (
                "; a SQL table supplies it if CREATE TABLE ... USING tinymq OPTIONS (servers ...) named no columns, "
                "but toTable and saveAsTable do not use it: give them the options"
            )
        raise InvalidConfig(f"the option {name!r} is missing", hint=hint)
    return values[name]


def _check_together(values: Mapping[str, Any], scope: str) -> None:
    _needed(values, "servers")
    which = [name for name in ("subscribe", "subscribePattern", "assign") if name in values]
    if len(which) != 1:
        conflict = " and ".join(which) + " were given" if which else "none was given"
        raise InvalidConfig(
            f"one of subscribe, subscribePattern and assign says what to read; {conflict}",
            hint="such as .option('subscribe', 'flights')",
        )
    for names in (
        ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
        ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    ):
        both = [name for name in names if name in values]
        if len(both) > 1:
            raise InvalidConfig(f"{' and '.join(both)} contradict each other", hint="leave all but one out")
    _check_needs(values, _STRATEGY, ("startingTimestamp", "startingOffsetsByTimestamp"))
    _check_needs(values, "maxTriggerDelay", ("minOffsetsPerTrigger",))
    for name in ("rack", "maxReplicaWaitMs"):
        if name in values and values.get("replica") == "leader":
            raise InvalidConfig(f"{name} has no meaning with replica=leader", hint="leave one of them out")
    least, most = values.get("minOffsetsPerTrigger", 0), values.get("maxOffsetsPerTrigger")
    if most is not None and least > most:
        raise InvalidConfig(
            f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}", hint="lower it to that at most"
        )
    if values.get("valueFormat") == "json":
        _needed(values, "valueSchema")
    else:
        for name in ("valueSchema", "mode", "columnNameOfCorruptRecord", "timeZone"):
            if name in values:
                raise InvalidConfig(f"{name} has no meaning without valueFormat=json", hint="add it, or leave both out")


def _check_needs(values: Mapping[str, Any], name: str, others: tuple[str, ...]) -> None:
    if name in values and not any(other in values for other in others):
        raise InvalidConfig(f"{name} has no meaning without {' or '.join(others)}", hint="add it, or leave both out")


def _start(values: Mapping[str, Any], scope: str) -> Place | Times:
    times = values.get("startingTimestamp", values.get("startingOffsetsByTimestamp"))
    if times is not None:
        return Times(times, or_latest=values.get(_STRATEGY, "error") == "latest")
    start: Place = values.get("startingOffsets", EARLIEST_TEXT if scope == BATCH else LATEST_TEXT)
    if scope == BATCH:
        ends = (
            [partition for partition, offset in start.items() if offset == LATEST] if not isinstance(start, str) else []
        )
        if start == LATEST_TEXT or ends:
            where = f" of {first_few(ends)}" if ends else ""
            raise InvalidConfig(
                f"startingOffsets{where} is latest: a batch that begins at the end reads nothing",
                hint="earliest, -2, an offset, or startingTimestamp",
            )
    return start


def _end(values: Mapping[str, Any]) -> Place | Times:
    times = values.get("endingTimestamp", values.get("endingOffsetsByTimestamp"))
    if times is not None:
        return Times(times, or_latest=True)
    end: Place = values.get("endingOffsets", LATEST_TEXT)
    begins = [partition for partition, offset in end.items() if offset == EARLIEST] if not isinstance(end, str) else []
    if end == EARLIEST_TEXT or begins:
        where = f" of {first_few(begins)}" if begins else ""
        raise InvalidConfig(
            f"endingOffsets{where} is earliest: a batch that ends at the beginning reads nothing",
            hint="latest, -1, an offset, or endingTimestamp",
        )
    return end


def _check_range(start: Place | Times, end: Place | Times) -> None:
    """Check two offsets or two times: they have the same partitions, and no end is before its start."""
    first = start.each if isinstance(start, Times) else start
    last = end.each if isinstance(end, Times) else end
    if isinstance(start, Times) != isinstance(end, Times):
        return
    if isinstance(first, int) and isinstance(last, int) and first > last:
        raise InvalidConfig(f"startingTimestamp={first} is after endingTimestamp={last}", hint="exchange them")
    if not isinstance(first, Mapping) or not isinstance(last, Mapping):
        return
    if first.keys() != last.keys():
        raise InvalidConfig(
            f"starts and ends are given for different partitions: {first_few(first.keys() ^ last.keys())}",
            hint="name the same ones in both",
        )
    for partition, offset in first.items():
        if 0 <= last[partition] < offset:
            raise InvalidConfig(
                f"{partition}: the start, {offset}, is after the end, {last[partition]}", hint="exchange them"
            )


def _name(values: Mapping[str, Any], option: str) -> str:
    name: str = values.get(option, "")
    if name and not _NAME.fullmatch(name):
        raise InvalidConfig(f"{option}={name!r:.300}: not a valid name", hint="use 1 to 249 of A-Z a-z 0-9 . _ -")
    return name


def _values(values: Mapping[str, Any]) -> Values | None:
    if values.get("valueFormat") != "json" or "valueSchema" not in values:
        return None
    return Values(
        values["valueSchema"],
        values.get("mode", options.MODES[0]),
        values.get("columnNameOfCorruptRecord", "_corrupt_record"),
        values.get("timeZone", "UTC"),
    )
