"""The options of the source and of the sink, as one table. The checks read it, and docs/spark-options.md shows it.

Options that the Kafka connector also has keep its names and its grammar. An unknown option, an option without a meaning
in this kind of query, and two options that contradict each other are errors. The error suggests the probable intention.
Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_tinymq.options import kafka, kinds
from pyspark_tinymq.options.kinds import Kind, choice, duration, whole
from tinymq.base.errors import InvalidConfig

BATCH, STREAM, SINK = "batch", "stream", "sink"
REPLICAS = ("leader", "follower", "nearest", "any")
MODES = ("PERMISSIVE", "FAILFAST", "DROPMALFORMED")
IGNORED = ("checkpointlocation", "queryname")
"""Spark's own options, which it passes to every source and sink."""

PATHS = ("path", "paths")
"""The options that load("..."), save("...") and start("...") set. A topic has no path."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `default` and `example` are texts as users write them. `scopes` are the queries that accept it."""

    name: str
    kind: Kind
    default: str
    meaning: str
    example: str
    scopes: tuple[str, ...] = (BATCH, STREAM)


_SOURCE = (
    Option("servers", kinds.TEXT, "",
           "Brokers, one of which finds the others; after `tinymq+tls://` with TLS. Must be given.", "localhost:7070",
           (BATCH, STREAM, SINK)),
    Option("token", kinds.TOKEN, "$TINYMQ_TOKEN of each process",
           "The user's token, for brokers that check callers. Spark hides it in its UI and plans. Where executors have "
           "the environment variable, leave it out.", "tmq_0123", (BATCH, STREAM, SINK)),
    Option("tlsCa", kinds.TEXT, "$TINYMQ_TLS_CA of each process",
           "With `tinymq+tls://` in front of `servers`: the file with the certificate of the brokers' authority, on "
           "the driver and on every executor.", "/etc/tinymq/ca.crt", (BATCH, STREAM, SINK)),
    Option("tlsDir", kinds.TEXT, "",
           "Likewise, a directory with `ca.crt`, and with the user's `tls.crt` and `tls.key` where brokers want a "
           "certificate.", "/etc/tinymq/etl", (BATCH, STREAM, SINK)),
    Option("subscribe", kinds.TOPICS, "",
           "Read these topics. One of `subscribe`, `subscribePattern` and `assign` must be given.", "flights,orders"),
    Option("subscribePattern", kinds.PATTERN, "",
           "Read the topics whose whole names match; a stream finds new ones.", "flights-.*"),
    Option("assign", kinds.ASSIGNMENT, "",
           "Read these partitions.", '{"flights":[0,1]}'),
    Option("startingOffsets", kinds.OFFSETS, "earliest (batch), latest (stream)",
           "Where to begin: for all partitions, or for each, where -2 is earliest and -1 latest (which a batch "
           "refuses). Only a new stream looks at it; partitions that come later are read from the first record.",
           '{"flights":{"0":23,"1":-2}}'),
    Option("startingTimestamp", kinds.TIME, "",
           "Begin at the first record of this time or later, in milliseconds.", "1357016400000"),
    Option("startingOffsetsByTimestamp", kinds.TIMES, "",
           "The same, with a time for each partition.", '{"flights":{"0":1357016400000}}'),
    Option("startingOffsetsByTimestampStrategy", choice("error", "latest"), "error",
           "What to do where no record is as late as that: fail, or begin at the end.", "latest"),
    Option("endingOffsets", kinds.OFFSETS, "latest",
           "Where to end, exclusive: `latest`, or an offset for each partition, where -1 is latest.",
           '{"flights":{"0":50,"1":-1}}', (BATCH,)),
    Option("endingTimestamp", kinds.TIME, "",
           "End before the first record of this time or later; at the end where there is none.",
           "1357102800000", (BATCH,)),
    Option("endingOffsetsByTimestamp", kinds.TIMES, "",
           "The same, with a time for each partition.", '{"flights":{"0":1357102800000}}', (BATCH,)),
    Option("failOnDataLoss", kinds.FLAG, "true",
           "Fail when planned records were removed, or a topic is gone. With `false`, go on with what there is, and "
           "say so in the log.", "false"),
    Option("minPartitions", whole(1, kinds.INT_MAX), "",
           "Split large ranges until there are about as many tasks.", "16"),
    Option("maxRecordsPerPartition", whole(1), "",
           "Split ranges that hold more records than this.", "1000000"),
    Option("maxOffsetsPerTrigger", whole(1), "",
           "At most about this many records in a micro-batch, shared out by how much waits in each partition.",
           "100000", (STREAM,)),
    Option("maxBytesPerTrigger", kinds.SIZE, "",
           "At most about this many bytes in a micro-batch, as they are stored. Estimated from each partition's "
           "mean size of a record.", "64m", (STREAM,)),
    Option("minOffsetsPerTrigger", whole(1), "",
           "Wait until so many records are there, but no longer than `maxTriggerDelay`. A stream that ends "
           "(availableNow) does not wait, nor does the first look of one that starts, or starts again.", "10000",
           (STREAM,)),
    Option("maxTriggerDelay", duration(0.001, 86400 * 365), "15m",
           "How long `minOffsetsPerTrigger` may hold up a micro-batch.", "30s", (STREAM,)),
    Option("includeHeaders", kinds.FLAG, "false",
           "Add the column `headers`: array<struct<key:string,value:binary>>.", "true"),
    Option("groupId", kinds.TEXT, "",
           "Publish how far the stream is as the channel of this name, so that `tinymq channel list` shows its lag. "
           "Where to begin is not read from it.", "spark-flights", (STREAM,)),
    Option("replica", choice(*REPLICAS), "follower",
           "Who serves: `follower` (the leader last), `leader`, `nearest` (same host, same rack, then the others) "
           "or `any`.", "nearest"),
    Option("rack", kinds.TEXT, "$TINYMQ_RACK of the process",
           "Where the executors run: replicas of this rack come before others.", "eu-1a"),
    Option("maxReplicaWaitMs", whole(0, 3_600_000), "2000",
           "How long a task waits for a replica that lags, before it tries another one.", "500"),
    Option("unreachableMs", whole(1, 3_600_000), "60000",
           "How long a task looks for a replica that serves, before it fails (and Spark tries it again).", "20000"),
    Option("requestTimeoutMs", whole(1, 3_600_000), "30000",
           "How long the driver waits for the cluster's answers.", "10000", (BATCH, STREAM, SINK)),
    Option("fetchBytes", kinds.SIZE, "8m",
           "How much a task asks a broker for at once.", "1m"),
    Option("holdMs", whole(0, 3_600_000), "",
           "Take a binding hold on planned records for this long; tasks and the next plan renew it. Meanwhile trims "
           "are refused, and a full topic refuses its producers. Without this option a plan only delays retention, "
           "for 60000 (batch) or 600000 (stream); with 0 it does not even do that.", "30000"),
    Option("scanId", kinds.TEXT, "spark-… (random)",
           "Under which name brokers count what this query reads: `tinymq scan describe ID` shows which replica "
           "served what.", "nightly-flights"),
    Option("valueFormat", choice("binary", "json"), "binary",
           "With `json` the column `value` has the type `valueSchema`, parsed in the task.", "json"),
    Option("valueSchema", kinds.SCHEMA, "",
           "The columns of JSON values: Spark's DDL, or the text of `schema.simpleString()` or `schema.json()`.",
           "carrier STRING, delay INT"),
    Option("mode", choice(*MODES), "PERMISSIVE",
           "What becomes of a value that is no such JSON, as in `from_json`.", "FAILFAST"),
    Option("columnNameOfCorruptRecord", kinds.TEXT, "_corrupt_record",
           "The field of `valueSchema`, of type STRING, that keeps such a value (mode PERMISSIVE).", "_bad"),
    Option("timeZone", kinds.ZONE, "UTC",
           "Of times in JSON values that say none, as in `from_json`.", "Europe/Paris"),
)  # fmt: skip

_SINK = (
    Option("topic", kinds.TOPIC, "", "Where to write; the column `topic` is not looked at then.", "delays", (SINK,)),
    Option("exactlyOnce", kinds.FLAG, "false", "Show rows to readers when Spark commits them, each exactly once "
           "(docs/spark-sink.md).", "true", (SINK,)),
    Option("sinkTimeoutMs", whole(1000, 604_800_000), "86400000", "With `exactlyOnce`: rows that nobody commits are "
           "dropped so long after the last sign of life of their job.", "3600000", (SINK,)),
    Option("includePlace", kinds.FLAG, "true (with `exactlyOnce`: false)", "Give each record its place in the query "
           "as the header `tinymq.place`, by which `drop_repeats` tells what was written twice.", "false", (SINK,)),
    Option("txnAppId", kinds.TEXT, "the query's id; of a batch, a random one",
           "The application that places name, and whose versions `exactlyOnce` writes once: the same for all writes "
           "that are the same work.", "nightly-delays", (SINK,)),
    Option("txnVersion", whole(0), "", "Which of the application's batches this is: a write that is repeated has "
           "the same again. With `txnAppId`; a stream has its batches' numbers.", "20130101", (SINK,)),
    Option("acks", choice("quorum", "leader"), "quorum", "When a record counts as written: on a majority of disks, or "
           "in its leader's memory.", "leader", (SINK,)),
    Option("compression", choice("none", "lz4", "zstd"), "none", "How batches are packed.", "lz4", (SINK,)),
    Option("batchBytes", kinds.SIZE, "1m", "About how large a batch is.", "256k", (SINK,)),
    Option("bufferBytes", kinds.SIZE, "64m", "How much of a task's rows may wait to be acknowledged.", "16m", (SINK,)),
    Option("deliveryTimeoutMs", whole(1, 3_600_000), "60000", "How long a task tries to send a batch before it fails "
           "(and Spark tries it again).", "20000", (SINK,)),
    Option("partitioner", choice("keyed", "round_robin", "sticky"), "keyed", "Where rows go that name no partition: by "
           "CRC32 of the key, or, as all without a key, to one for each batch.", "round_robin", (SINK,)),
)  # fmt: skip

OPTIONS: tuple[Option, ...] = (*_SOURCE, *_SINK)


def options_of(scope: str) -> dict[str, Option]:
    """Return the options that have a meaning in BATCH, STREAM or SINK, by their lower-case names."""
    return {option.name.lower(): option for option in OPTIONS if scope in option.scopes}


def read(texts: Mapping[str, str], *scopes: str) -> dict[str, Any]:
    """Return the values of the options in `texts`, by the options' own names. Case in names is ignored.

    Raises InvalidConfig for an unknown option, an option without a meaning in these scopes, and an invalid value.
    """
    accepted: dict[str, Option] = {}
    for scope in scopes:
        accepted |= options_of(scope)
    values: dict[str, Any] = {}
    for name, text in texts.items():
        lower = name.lower()
        if lower in IGNORED:
            continue
        if lower in PATHS:
            raise _of_a_path(str(text), accepted)
        if lower not in accepted:
            raise _unknown(name, accepted, scopes)
        option = accepted[lower]
        try:
            values[option.name] = option.kind.read(str(text).strip())
        except ValueError as error:
            reason = f"{error}: " if str(error) else ""
            shown = "…" if option.kind is kinds.TOKEN else repr(str(text)[:200])
            raise InvalidConfig(
                f"{option.name}={shown}: {reason}it takes {option.kind.takes}",
                hint=f"such as .option({option.name!r}, {option.example!r})",
            ) from None
    return values


def _unknown(name: str, accepted: Mapping[str, Option], scopes: Iterable[str]) -> InvalidConfig:
    lower = name.lower()
    where = " or ".join(scopes)
    elsewhere = next((option for option in OPTIONS if option.name.lower() == lower), None)
    if elsewhere is not None:
        places = ", ".join({BATCH: "batch reads", STREAM: "streams", SINK: "sinks"}[s] for s in elsewhere.scopes)
        return InvalidConfig(f"{elsewhere.name} has no meaning in a {where}", hint=f"leave it out: it is for {places}")
    renamed = kafka.RENAMED.get(lower, "")
    if renamed.lower() in accepted:
        return InvalidConfig(f"unknown option {name!r}", hint=f"did you mean {renamed!r}?")
    if hint := kafka.advice_for(name):
        return InvalidConfig(f"unknown option {name!r}", hint=hint)
    near = difflib.get_close_matches(lower, accepted, 1, cutoff=0.6)
    hint = f"did you mean {accepted[near[0]].name!r}?" if near else "docs/spark-options.md lists the options"
    return InvalidConfig(f"unknown option {name!r}", hint=hint)


def _of_a_path(text: str, accepted: Mapping[str, Option]) -> InvalidConfig:
    name, calls = ("topic", "save() and start() take") if "topic" in accepted else ("subscribe", "load() takes")
    return InvalidConfig(
        f"path={text[:200]!r}: a topic has no path, so {calls} none here",
        hint=f"name the topic with .option({name!r}, ...), and leave the path out",
    )
