"""The findings of the fuzzers, each as its smallest input."""

from __future__ import annotations

import pytest

from tests.fuzz import reseal
from tests.fuzz.disks import disk, folder
from tests.fuzz.formats import registry
from tests.fuzz.test_words import GOOD, check_loaded, toml
from tests.fuzz.wire import deliver
from tests.log.values import open_store, run
from tinymq.base.config import parse_address
from tinymq.base.errors import CorruptData, InvalidConfig, InvalidRequest
from tinymq.broker.state.state import PartitionState
from tinymq.cli.common.offsets import parse_start
from tinymq.client.cluster.routing import read_topic
from tinymq.format.entry import Kind, NewEntry, crc32c, make_entry, parse_header
from tinymq.log.broker_files import durability_marks, vote_store
from tinymq.log.files.record_file import COMPLETE, pack_record, parse_records
from tinymq.log.segment.index import parse_index
from tinymq.net.framing import pack_frame
from tinymq.proto import peer_pb2, registry_pb2
from tinymq.proto import tinymq_pb2 as pb
from tinymq.registry.state.state import RegistryState


@pytest.mark.parametrize(
    "field",
    [{"base_offset": (1 << 63) - 1}, {"index": 1 << 63}, {"term": (1 << 64) - 1}],
    ids=lambda field: next(iter(field)),
)
def test_numbers_of_an_entry_are_positive_when_they_are_signed(field: dict[str, int]) -> None:
    """They become signed numbers in Arrow columns, and are increased by one in the next header."""
    values = {"index": 1, "term": 1, "base_offset": 0} | field
    entry = make_entry(
        NewEntry(Kind.DATA, b"", record_count=1, max_timestamp_us=1), prev_crc=0, append_time_us=1, **values
    )
    with pytest.raises(CorruptData):
        parse_header(entry.head)


@pytest.mark.parametrize(
    ("magic", "record_bytes"),
    [(durability_marks.MAGIC, durability_marks.RECORD_SIZE), (vote_store.MAGIC, vote_store.RECORD_SIZE)],
)
def test_a_batch_that_ends_within_a_record_does_not_count(magic: int, record_bytes: int) -> None:
    good = pack_record(magic, 1, COMPLETE, bytes(record_bytes))
    bad = pack_record(magic, 2, COMPLETE, bytes(record_bytes + 1))
    assert [found.number for found in parse_records(good + bad, magic, record_bytes)] == [1]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"format": 1, "broker_id": Infinity, "incarnation": "00", "cluster_id": ""}',
        '{"format": 1, "broker_id": 1, "incarnation": 5, "cluster_id": ""}',
    ],
    ids=["deep", "infinite", "no text"],
)
def test_an_identity_that_is_odd_json_is_damaged(text: str) -> None:
    files = disk({**folder()[0], "broker.json": reseal.identity(text.encode())})
    with pytest.raises(CorruptData):
        run(open_store(files))


def test_an_index_whose_rows_are_out_of_order_is_not_believed() -> None:
    """A row beyond the segment would fail an assertion in a later read."""
    good = next(content for path, content in folder()[0].items() if path.endswith(".index"))
    parse_index(good)
    row = 120
    for position in (row, row + 16):
        spoilt = bytearray(good)
        spoilt[position + 6] = 0x20
        with pytest.raises(CorruptData):
            parse_index(reseal.index(bytes(spoilt)))


@pytest.mark.parametrize("position", [6, 15, 23, 31])
def test_a_partitions_state_is_what_dump_makes(position: int) -> None:
    """A reserved field that is set, and numbers of more than 63 bits, which the next dump could not pack."""
    spoilt = bytearray(PartitionState().dump())
    spoilt[position] = 0xFF
    with pytest.raises(CorruptData):
        PartitionState().load(reseal.leading(bytes(spoilt)))


def test_a_partitions_state_remembers_no_more_producers_than_it_may() -> None:
    """Each entry with a new one would add another: the table would never return below its bound."""
    producer = (1).to_bytes(8, "little") + bytes(4) + (1).to_bytes(4, "little") + bytes(8) + bytes(28)
    many = b"".join((n + 1).to_bytes(8, "little") + producer[8:] for n in range(6))
    empty = PartitionState().dump()
    body = empty[4:32] + len(many).to_bytes(8, "little") + many + empty[40:]
    with pytest.raises(CorruptData):
        PartitionState(5).load(crc32c(body).to_bytes(4, "little") + body)
    PartitionState(6).load(crc32c(body).to_bytes(4, "little") + body)


@pytest.mark.parametrize("nonsense", ["heartbeat", "leaders"])
def test_an_invalid_group_does_not_end_a_connection(nonsense: str) -> None:
    """What `on_message` raised went to asyncio, which closed the connection with a traceback in the log."""
    named = peer_pb2.GroupTerm(group=peer_pb2.GroupId(topic_id=b"short"), term=1)
    message = peer_pb2.Peer()
    if nonsense == "heartbeat":
        message.heartbeat.stepped_down.append(named)
    else:
        message.leaders.led.append(named)
    deliver(b"".join(pack_frame(message.SerializeToString())[0]))


def test_an_answer_that_lacks_a_partition_is_not_believed() -> None:
    """Partitions are looked up by their number: records would have gone to the wrong partition."""
    numbered = [pb.PartitionInfo(partition=number) for number in (2, 0, 2)]
    with pytest.raises(CorruptData):
        read_topic(pb.TopicInfo(name="t", topic_id=b"t" * 16, partitions=numbered))
    with pytest.raises(CorruptData):
        read_topic(pb.TopicInfo(name="t", topic_id=b"t" * 16))


@pytest.mark.parametrize(
    ("text", "environment"),
    [
        ("", {"TINYMQ_VOTERS": "1@h:1"}),  # asking for JSON raised pydantic's own error
        ("", {"TINYMQ_LIMITS": "{"}),
        ("", {"TINYMQ_VOTERS": "[" * 5000}),
        (
            "_cli_parse_args = true",
            {},
        ),  # an option of pydantic-settings: it read the command line, and ended the process
        ('_secrets_dir = "/"', {}),
        ('secret_file = "a\\u0000b"', {}),
        (f"rack = {'[' * 5000}", {}),
        (f"broker_id = {'9' * 5000}", {}),
        (f'listen = "h:{"1" * 5000}"', {}),
        ("[timing]\nheartbeat_s = inf\ngone_after_s = inf", {}),
        ("[timing]\ncommand_timeout_s = 1e300", {}),
        ("[limits]\nfetch_bytes_max = 4294967296", {}),
    ],
)
def test_odd_settings_are_refused_in_words(text: str, environment: dict[str, str]) -> None:
    keys = {line.partition(" = ")[0] for line in text.splitlines()}
    values = {**GOOD, "secret_file": "SECRET_FILE"}
    kept = "\n".join(f"{key} = {toml(value)}" for key, value in values.items() if key not in keys)
    assert check_loaded(kept, {}) is not None or "secret_file" in keys or "broker_id" in keys
    assert check_loaded(f"{kept}\n{text}", environment) is None


@pytest.mark.parametrize("text", ["1" * 5000, "-" + "1" * 5000, "9" * 19, "@" + "9" * 5000])
def test_a_place_to_start_beyond_all_offsets_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_start(text)


@pytest.mark.parametrize(
    "text", ["h:" + "1" * 5000, "a b:1", "a\0b:1", "[[::1]]:1", "1@h:1", "h/x:1", "x" * 300 + ":1"]
)
def test_an_invalid_host_gives_no_address(text: str) -> None:
    with pytest.raises(InvalidConfig):
        parse_address(text)


NO_STATES = {
    "a partition without replicas": lambda state: state.topics[0].partitions[0].ClearField("replicas"),
    "a topic without partitions": lambda state: state.topics[0].ClearField("partitions"),
    "a topic twice": lambda state: state.topics.append(state.topics[0]),
    "an id that is none": lambda state: state.deleted_topic_ids.append(b"short"),
    "no broker": lambda state: state.brokers.add(),
    "a broker twice": lambda state: state.brokers.append(state.brokers[0]),
    "producer ids up to the end": lambda state: setattr(state, "next_producer_id", (1 << 64) - 1),
    "no producer id": lambda state: setattr(state, "next_producer_id", 0),
    "a version at the end": lambda state: setattr(state, "version", (1 << 64) - 1),
    "a partition number twice": lambda state: state.topics[0].partitions.append(state.topics[0].partitions[0]),
    "numbers that fall": lambda state: setattr(state.topics[0].partitions[0], "number", 7),
    "a next partition that is there": lambda state: setattr(state.topics[0], "next_partition", 1),
    "numbers at the end": lambda state: setattr(state.topics[0], "next_partition", (1 << 32) - 1),
    "a name that is none": lambda state: setattr(state.topics[0], "name", "a/b"),
    "a storage that is none": lambda state: setattr(state.topics[0].config, "storage", "tape"),
    "a setting out of range": lambda state: setattr(state.topics[0].config, "segment_ms", 0),
    "no settings": lambda state: state.topics[0].ClearField("config"),
    "a consumer twice": lambda state: state.consumers.append(state.consumers[0]),
    "a consumer of nothing": lambda state: setattr(state.consumers[0], "partition", 9),
    "a consumer of no topic": lambda state: setattr(state.consumers[0], "topic_id", b"n" * 16),
    "a channel that is none": lambda state: setattr(state.consumers[0], "channel", ""),
    "a consumer without a name": lambda state: setattr(state.consumers[0], "consumer", "\n"),
    "an epoch of the future": lambda state: setattr(state.consumers[0], "epoch", state.version + 1),
    "no epoch": lambda state: setattr(state.consumers[0], "epoch", 0),
    "too many consumers": lambda state: state.consumers.extend(
        registry_pb2.Consumer(topic_id=state.topics[0].topic_id, channel=f"c{n}", consumer="c", epoch=1)
        for n in range(1001)
    ),
}


@pytest.mark.parametrize("what", NO_STATES)
def test_a_registrys_state_that_no_commands_make_is_not_loaded(what: str) -> None:
    """The next topic that is placed, or the next command that is counted, would have raised in `apply`."""
    state = registry_pb2.State.FromString(registry().dump()[4:])
    RegistryState().load(reseal.leading(bytes(4) + state.SerializeToString()))
    NO_STATES[what](state)
    with pytest.raises(CorruptData):
        RegistryState().load(reseal.leading(bytes(4) + state.SerializeToString()))
