"""Every option: its valid values, the errors for others, and its row on the page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_tinymq.options import options, settings
from pyspark_tinymq.options.ddl import read_schema
from pyspark_tinymq.options.kafka import RENAMED
from pyspark_tinymq.options.offsets import Partition
from pyspark_tinymq.options.options import BATCH, IGNORED, OPTIONS, SINK, STREAM
from pyspark_tinymq.options.settings import Times, Values, read_source
from pyspark_tinymq.write import sink
from tinymq.base.errors import InvalidConfig

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "spark-options.md"
READ = {"servers": "localhost:7070", "subscribe": "flights"}
F0, F1 = Partition("flights", 0), Partition("flights", 1)

REFUSED = [  # (scope, options beyond READ; None takes one away, what the error says)
    (BATCH, {"servers": None}, "'servers' is missing"),
    (BATCH, {"servers": "localhost"}, "servers='localhost': 'localhost' is not an address"),
    (BATCH, {"subscribe": None}, "none was given"),
    (BATCH, {"subscribe": " , "}, "names of topics"),
    (BATCH, {"replica": "leader", "rack": "r1"}, "rack has no meaning with replica=leader"),
    (STREAM, {"replica": "leader", "maxReplicaWaitMs": "5"}, "maxReplicaWaitMs has no meaning with replica=leader"),
    (BATCH, {"subscribe": "a,a"}, "each once"),
    (BATCH, {"subscribe": "a b"}, "not a topic's name"),
    (BATCH, {"subscribePattern": "f.*"}, "subscribe and subscribePattern were given"),
    (BATCH, {"subscribe": None, "subscribePattern": "("}, "regular expression"),
    (BATCH, {"subscribe": None, "assign": "flights"}, "JSON such as"),
    (BATCH, {"subscribe": None, "assign": '{"flights":[]}'}, "no list of partitions"),
    (BATCH, {"subscribe": None, "assign": '{"flights":[0,0]}'}, "at least one partition, and none twice"),
    (BATCH, {"subscribe": None, "assign": '{"flights":[-1]}'}, "-1 is not a partition"),
    (BATCH, {"kafka.bootstrap.servers": "a:1"}, "did you mean 'servers'?"),
    (BATCH, {"kafka.group.id": "g"}, "unknown option 'kafka.group.id' (leave it out"),
    (BATCH, {"kafka.sasl.mechanism": "PLAIN"}, "give token, and tlsCa"),
    (STREAM, {"kafka.security.protocol": "SASL_SSL"}, "give token, and tlsCa"),
    (BATCH, {"kafka.ssl.truststore.location": "/x"}, "give token, and tlsCa"),
    (BATCH, {"token": "not a token"}, "token=…: this is not a token"),
    (STREAM, {"tlsCa": "/x"}, "tlsCa has no meaning without TLS"),
    (BATCH, {"kafka.value.deserializer": "x"}, "key and value are binary"),
    (STREAM, {"kafka.enable.auto.commit": "true"}, "the checkpoint keeps a stream's position"),
    (BATCH, {"kafka.isolation.level": "read_committed"}, "readers see committed records only"),
    (BATCH, {"kafka.max.poll.records": "5"}, "did you mean 'maxRecordsPerPartition'?"),
    (BATCH, {"kafka.linger.ms": "5"}, "no option of Kafka's clients has a meaning here"),
    (BATCH, {"path": "flights"}, "path='flights': a topic has no path, so load() takes none here"),
    (STREAM, {"paths": '["a","b"]'}, ".option('subscribe', ...)"),
    (BATCH, {"provider": "tinymq"}, "unknown option 'provider'"),
    (BATCH, {"fetchBytes": "64MiBs"}, "fetchBytes='64MiBs': it takes bytes, or a size such as 64k, 64m, 64MiB"),
    (BATCH, {"fetchBytes": "1.5g"}, "fetchBytes='1.5g': it takes bytes"),
    (STREAM, {"kafka.group.id": "g"}, "did you mean 'groupId'?"),
    (BATCH, {"startingOffset": "earliest"}, "did you mean 'startingOffsets'?"),
    (BATCH, {"replicas": "any"}, "did you mean 'replica'?"),
    (BATCH, {"zzzzz": "1"}, "docs/spark-options.md"),
    (BATCH, {"topic": "delays"}, "it is for sinks"),
    (BATCH, {"maxOffsetsPerTrigger": "5"}, "it is for streams"),
    (BATCH, {"minOffsetsPerTrigger": "5"}, "it is for streams"),
    (BATCH, {"maxBytesPerTrigger": "5m"}, "it is for streams"),
    (BATCH, {"groupId": "g"}, "it is for streams"),
    (STREAM, {"endingOffsets": "latest"}, "it is for batch reads"),
    (STREAM, {"endingTimestamp": "1"}, "it is for batch reads"),
    (STREAM, {"endingOffsetsByTimestamp": '{"a":{"0":1}}'}, "it is for batch reads"),
    (BATCH, {"startingOffsets": "latest"}, "a batch that begins at the end reads nothing"),
    (BATCH, {"startingOffsets": '{"flights":{"0":5,"1":-1}}'}, "startingOffsets of flights/1 is latest"),
    (BATCH, {"endingOffsets": "earliest"}, "ends at the beginning"),
    (BATCH, {"endingOffsets": '{"flights":{"0":-2}}'}, "endingOffsets of flights/0 is earliest"),
    (BATCH, {"startingOffsets": "first"}, "earliest, latest, or JSON"),
    (BATCH, {"startingOffsets": '{"flights":{"0":-3}}'}, "-1 is latest, -2 earliest"),
    (BATCH, {"startingOffsets": '{"flights":{"0":1.5}}'}, "not a whole number"),
    (BATCH, {"startingOffsets": '{"flights":{"0":true}}'}, "not a whole number"),
    (BATCH, {"startingOffsets": '{"flights":{"x":1}}'}, "not a partition's number"),
    (BATCH, {"startingOffsets": '{"flights":{"01":1}}'}, "not a partition's number"),
    (BATCH, {"startingOffsets": '{"flights":[0]}'}, "no partitions with numbers"),
    (BATCH, {"startingOffsets": '{"flights":{"0":1,"0":2}}'}, "a name occurs twice"),
    (BATCH, {"startingOffsets": '{"flights":{"0":1}'}, "at character"),
    (BATCH, {"startingOffsets": "{}"}, "no partition is named"),
    (BATCH, {"startingOffsets": '{"flights":{"0":99999999999999999999}}'}, "not a whole number"),
    (BATCH, {"startingOffsets": "[" * 100_000}, "JSON"),
    (BATCH, {"startingOffsets": '{"a":' * 100_000}, "JSON"),
    (BATCH, {"startingOffsets": "earliest", "startingTimestamp": "1"}, "contradict each other"),
    (BATCH, {"startingTimestamp": "2", "endingTimestamp": "1"}, "is after endingTimestamp=1"),
    (BATCH, {"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
    (BATCH, {"startingTimestamp": "-5"}, "milliseconds since 1970"),
    (BATCH, {"startingOffsetsByTimestamp": '{"flights":{"0":-1}}'}, "not a time"),
    (BATCH, {"startingOffsetsByTimestampStrategy": "latest"}, "without startingTimestamp or "),
    (BATCH, {"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "lates"}, "did you mean 'latest'?"),
    (BATCH, {"startingOffsets": '{"flights":{"0":5}}', "endingOffsets": '{"flights":{"1":9}}'}, "different partitions"),
    (BATCH, {"startingOffsets": '{"flights":{"0":5}}', "endingOffsets": '{"flights":{"0":4}}'}, "is after the end"),
    (STREAM, {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "is more than maxOffsetsPerTrigger=5"),
    (STREAM, {"maxTriggerDelay": "5s"}, "without minOffsetsPerTrigger"),
    (STREAM, {"minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"}, "a duration such as"),
    (STREAM, {"maxOffsetsPerTrigger": "0"}, "1 or more"),
    (STREAM, {"maxBytesPerTrigger": "64 bits"}, "64m"),
    (STREAM, {"maxBytesPerTrigger": "0"}, "64m"),
    (STREAM, {"groupId": "a b"}, "groupId='a b'"),
    (BATCH, {"minPartitions": "0"}, "1 or more"),
    (BATCH, {"minPartitions": "2147483648"}, "at most"),
    (BATCH, {"maxRecordsPerPartition": "many"}, "1 or more"),
    (BATCH, {"failOnDataLoss": "yes"}, "true or false"),
    (BATCH, {"includeHeaders": "1"}, "true or false"),
    (BATCH, {"replica": "folower"}, "did you mean 'follower'?"),
    (BATCH, {"replica": "x"}, "one of leader, follower, nearest, any"),
    (BATCH, {"holdMs": "1"}, "the shortest hold is 1000 ms (give 0"),
    (BATCH, {"holdMs": "3600001"}, "at most 3600000"),
    (BATCH, {"scanId": "a b"}, "scanId='a b'"),
    (BATCH, {"valueFormat": "jsn"}, "did you mean 'json'?"),
    (BATCH, {"valueFormat": "json"}, "'valueSchema' is missing"),
    (BATCH, {"valueSchema": "a INT"}, "without valueFormat=json"),
    (BATCH, {"mode": "FAILFAST"}, "without valueFormat=json"),
    (BATCH, {"valueFormat": "json", "valueSchema": "a INT", "mode": "FAIL_FAST"}, "did you mean 'FAILFAST'?"),
    (BATCH, {"columnNameOfCorruptRecord": "_bad"}, "without valueFormat=json"),
    (BATCH, {"valueFormat": "json", "valueSchema": "a INTT"}, "valueSchema='a INTT': at character 3, 'INTT'"),
    (BATCH, {"valueFormat": "json", "valueSchema": "a INT", "timeZone": "Mars"}, "unknown zone 'Mars'"),
]  # fmt: skip


@pytest.mark.parametrize(("scope", "given", "says"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_is_refused(scope: str, given: dict[str, str | None], says: str) -> None:
    told = {name: text for name, text in (READ | given).items() if text is not None}
    with pytest.raises(InvalidConfig) as refused:
        read_source(told, scope)
    assert says in str(refused.value)
    assert refused.value.hint


def test_what_is_read() -> None:
    batch = read_source(READ, BATCH)
    assert (batch.start, batch.end, batch.replica, batch.fail_on_loss) == ("earliest", "latest", "follower", True)
    assert batch.topics == ("flights",)
    stream = read_source({"SERVERS": "a:1,b:2", "Assign": '{"flights":[1,0]}'}, STREAM)
    assert (stream.start, stream.assigned, stream.servers) == ("latest", (F0, F1), ("a:1", "b:2"))
    assert not stream.limits.any


def test_places_and_times() -> None:
    given = {"startingOffsets": ' {"flights":{"0":23,"1":-2}} ', "endingOffsets": '{"flights":{"0":50,"1":-1}}'}
    source = read_source(READ | given, BATCH)
    assert (source.start, source.end) == ({F0: 23, F1: -2}, {F0: 50, F1: -1})
    source = read_source(READ | {"startingTimestamp": "7", "startingOffsetsByTimestampStrategy": "LATEST"}, STREAM)
    assert source.start == Times(7, or_latest=True)
    times = {"startingOffsetsByTimestamp": '{"flights":{"0":7}}', "endingOffsetsByTimestamp": '{"flights":{"0":9}}'}
    source = read_source(READ | times, BATCH)
    assert (source.start, source.end) == (Times({F0: 7}), Times({F0: 9}, or_latest=True))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250", 0.25),
        ("250ms", 0.25),
        ("30s", 30.0),
        ("2m", 120.0),
        ("2 min", 120.0),
        ("1h", 3600.0),
        ("10 seconds", 10.0),
        ("1 minute", 60.0),
        ("2 Hours", 7200.0),
        ("1 day", 86400.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert (
        read_source(READ | {"minOffsetsPerTrigger": "1", "maxTriggerDelay": text}, STREAM).limits.delay_s_max == seconds
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5", 5),
        ("64k", 65536),
        ("64KB", 65536),
        ("2m", 2 << 20),
        ("1g", 1 << 30),
        ("64MiB", 64 << 20),
        ("64 mib", 64 << 20),
        ("64mb", 64 << 20),
        ("5 bytes", 5),
        ("7B", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert read_source(READ | {"maxBytesPerTrigger": text}, STREAM).limits.bytes_max == size


def test_values_of_json() -> None:
    given = READ | {"valueFormat": "JSON", "valueSchema": "a INT", "mode": "dropmalformed"}
    assert settings.read_schema_options(given) == (
        False,
        Values(read_schema("a INT"), "DROPMALFORMED", "_corrupt_record"),
    )
    assert settings.read_schema_options(READ | {"includeHeaders": "TRUE", "endingOffsets": "latest"}) == (True, None)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"servers": "a:1"}, "none was given"),
        (READ | {"startingOffsets": "latest", "endingOffsets": "latest"}, "begins at the end"),
        (READ | {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "is more than"),
        (READ | {"endingOffsets": "latest", "groupId": "g"}, "endingOffsets has no meaning in a stream"),
        (READ | {"topic": "x"}, "it is for sinks"),
    ],
)
def test_options_that_no_read_accepts_are_refused_at_load(given: dict[str, str], says: str) -> None:
    """Before Spark says whether the read is a batch or a stream."""
    with pytest.raises(InvalidConfig, match=says):
        settings.read_schema_options(given)


def test_sparks_own_options_are_ignored() -> None:
    assert read_source(READ | dict.fromkeys(IGNORED, "x") | {"checkpointLocation": "x"}, STREAM).topics == ("flights",)


@pytest.mark.parametrize("option", [{"txnAppId": "nightly"}, {"txnVersion": "3"}])
def test_a_place_is_not_named_where_none_is_given(option: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig, match="has no meaning with includePlace=false"):
        sink.read_sink({"servers": "localhost:7070", "includePlace": "false", **option})


def test_the_sink_has_its_own_options() -> None:
    read = settings.read_sink({"servers": "localhost:7070", "topic": "delays"})
    assert read["topic"] == "delays"
    assert read["servers"] == ("localhost:7070",)
    with pytest.raises(InvalidConfig, match="it is for batch reads"):
        settings.read_sink({"servers": "localhost:7070", "endingOffsets": "latest"})


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: str(option.name))
def test_every_example_and_default_is_taken(option: options.Option) -> None:
    option.kind.read(option.example)
    if option.default and "(" not in option.default and "$" not in option.default:
        option.kind.read(option.default)
    assert option.meaning.endswith(".")
    assert set(option.scopes) <= {BATCH, STREAM, SINK}


NEEDS = {
    "maxTriggerDelay": {"minOffsetsPerTrigger": "1"},
    "startingOffsetsByTimestampStrategy": {"startingTimestamp": "1"},
    "mode": {"valueFormat": "json", "valueSchema": "a INT"},
    "columnNameOfCorruptRecord": {"valueFormat": "json", "valueSchema": "a INT"},
    "timeZone": {"valueFormat": "json", "valueSchema": "a INT"},
}


def _has_plain_default(option: options.Option) -> bool:
    return bool(option.default) and not set("($") & set(option.default) and option.scopes != (SINK,)


@pytest.mark.parametrize("option", list(filter(_has_plain_default, OPTIONS)), ids=lambda option: str(option.name))
def test_the_defaults_are_as_they_are_said(option: options.Option) -> None:
    given = READ | NEEDS.get(option.name, {})
    for scope in set(option.scopes) - {SINK}:
        assert read_source(given | {option.name: option.default}, scope) == read_source(given, scope)


def test_names_are_there_once_and_the_connectors_lead_somewhere() -> None:
    names = [option.name.lower() for option in OPTIONS]
    assert len(set(names)) == len(names)
    assert not set(RENAMED) & set(names)
    assert {name.lower() for name in RENAMED.values()} <= set(names)


def _row(option: options.Option) -> str:
    example = option.example.replace("|", "\\|")
    where = ", ".join(option.scopes)
    return f"| `{option.name}` | {option.default or '-'} | {where} | {option.meaning} | `{example}` |"


def test_the_page_has_every_option() -> None:
    """The page's table has the options in this order."""
    table = PAGE.read_text().partition("\n## ")[0]
    shown = [line for line in table.splitlines() if line.startswith("| `")]
    assert shown == [_row(option) for option in OPTIONS]


def test_finding_the_name_loads_neither_grpc_nor_the_client() -> None:
    """Spark imports the package in every session, even without a topic."""
    code = "import sys, pyspark_tinymq; pyspark_tinymq.DefaultSource.name(); print(*sorted(sys.modules), sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "spark", timeout=60
    )
    loaded = set(done.stdout.split())
    assert "pyspark_tinymq.source" in loaded
    assert not {name for name in loaded if name.split(".")[0] in ("grpc", "pyarrow")}
    assert {name for name in loaded if name.split(".")[0] == "tinymq"} == {
        "tinymq",
        "tinymq.base",
        "tinymq.base.extras",
        "tinymq.base.version",
    }
