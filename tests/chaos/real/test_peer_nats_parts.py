"""The parts of the NATS adapter: what an answer means, what files contain, what a power cut takes."""

import asyncio
import os
import random
import struct

import pytest

from tinymq.base.errors import BrokerUnreachable, DeadlineExceeded, OutcomeUnknown
from tinymq_chaos.real.peers import loop_disk, nats_faults, nats_files, nats_names
from tinymq_chaos.real.peers.nats_client import publish
from tinymq_chaos.real.peers.nats_config import ServerPorts, config
from tinymq_chaos.real.peers.nats_wire import PublishAck
from tinymq_chaos.records import make_value

# ---- what became of a send ----------------------------------------------------------------------------------------


class Answers:
    """A wire with these answers, one after another; the last one repeats."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.ids = []

    async def publish(self, subject, value, within_s, message_id):
        await asyncio.sleep(0)
        self.ids.append(message_id)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def send(wire, message_id="m", within_s=0.2):
    return asyncio.run(publish(wire, "t", 1, b"v", within_s, message_id))


def test_an_acknowledged_send_lies_one_below_its_sequence():
    assert send(Answers(PublishAck(7, False))).offset == 6


def test_a_send_is_tried_again_under_its_id_and_known_once_any_try_is_acknowledged():
    wire = Answers(OutcomeUnknown("silence"), BrokerUnreachable("nobody"), PublishAck(7, True))
    placed = send(wire, within_s=10)
    assert (placed.partition, placed.offset, placed.duplicate) == (1, 6, True)
    assert wire.ids == ["m"] * 3


def test_a_send_that_no_attempt_delivered_has_certainly_failed():
    with pytest.raises(DeadlineExceeded):
        send(Answers(BrokerUnreachable("nobody")))


def test_one_try_without_an_answer_makes_a_send_unknown():
    with pytest.raises(OutcomeUnknown):
        send(Answers(OutcomeUnknown("silence"), BrokerUnreachable("nobody")))


@pytest.mark.parametrize(
    ("answer", "ends"), [(OutcomeUnknown("silence"), OutcomeUnknown), (BrokerUnreachable("nobody"), DeadlineExceeded)]
)
def test_a_send_without_an_id_is_not_retried(answer, ends):
    wire = Answers(answer, PublishAck(7, False))
    with pytest.raises(ends):
        send(wire, message_id=None, within_s=10)
    assert wire.ids == [None]


# ---- names and settings -------------------------------------------------------------------------------------------


def test_a_partition_is_a_stream_and_an_offset_its_sequence_less_one():
    assert nats_names.stream_of("idempotent.1", 2) == "idempotent_1-2"
    assert nats_names.subject_of("idempotent.1", 2) == "idempotent.1.2"
    assert nats_names.offset_of(nats_names.sequence_of(41)) == 41
    wanted = nats_names.stream_config("t", 0, 1, "ab")
    assert (wanted["num_replicas"], wanted["storage"]) == (3, "file")


def test_a_server_has_the_given_routes_and_advertises_no_usable_address(tmp_path):
    said = config("n1", ServerPorts(1001, 1002, 1003), ["127.0.0.1:7", "127.0.0.1:8"], tmp_path, "always")
    assert 'routes: ["nats-route://127.0.0.1:7", "nats-route://127.0.0.1:8"]' in said
    assert "no_advertise: true" in said
    assert 'advertise: "127.0.0.1:1"' in said
    assert "sync_interval: always" in said
    assert 'sync_interval: "2m"' in config("n1", ServerPorts(1, 2, 3), [], tmp_path, "2m")


# ---- files --------------------------------------------------------------------------------------------------------


def record(sequence, value, headers=b"", subject=b"t.0"):
    body = subject + (struct.pack("<I", len(headers)) + headers if headers else b"") + value
    length = 22 + len(body) + 8
    flags = 1 << 31 if headers else 0
    return struct.pack("<IQqH", length | flags, sequence, 0, len(subject)) + body + b"checksum"


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "jetstream" / "$G" / "streams" / "t-0" / "msgs"
    folder.mkdir(parents=True)
    return tmp_path


def write(data, **blocks):
    folder = data / "jetstream" / "$G" / "streams" / "t-0" / "msgs"
    for name, records in blocks.items():
        (folder / f"{name[1:]}.blk").write_bytes(b"".join(records))


def test_messages_are_read_from_all_blocks_in_order(data):
    write(data, b1=[record(1, make_value("a-0")), record(2, make_value("a-1"), b"NATS/1.0\r\n\r\n")],
          b10=[record(4, make_value("a-3"))], b9=[record(3, make_value("a-2"))])  # fmt: skip
    found = nats_files.stored(data, "t-0")
    assert [(e.index, e.base_offset, e.records) for e in found] == [(n + 1, n, (f"a-{n}",)) for n in range(4)]
    assert [e.prev_crc for e in found[1:]] == [e.header_crc for e in found[:-1]]


def test_a_removed_message_is_a_gap(data):
    write(data, b1=[record(1, make_value("a-0")), record(2 | 1 << 63, b"", subject=b""), record(3, make_value("a-2"))],
          b2=[record(1 | 1 << 62, b"", subject=b"")])  # fmt: skip
    assert [e.index for e in nats_files.stored(data, "t-0")] == [3]


def test_invalid_bytes_are_a_value_that_no_producer_sent(data):
    write(data, b1=[record(1, make_value("a-0")), record(2, make_value("a-1"))[:-20]])
    first, second = nats_files.stored(data, "t-0")
    assert first.records == ("a-0",)
    assert second.records[0].startswith("!")


def test_replicas_with_other_messages_have_other_chains(data):
    write(data, b1=[record(1, make_value("a-0")), record(2, make_value("a-1"))])
    one = nats_files.stored(data, "t-0")
    write(data, b1=[record(1, make_value("b-0")), record(2, make_value("a-1"))])
    other = nats_files.stored(data, "t-0")
    assert [a.header_crc == b.header_crc for a, b in zip(one, other, strict=True)] == [False, False]


# ---- damage -------------------------------------------------------------------------------------------------------


class Stage:
    """One server that stops and starts."""

    topics = (("t", 0),)

    def __init__(self, data):
        self._data = data
        self.did = []

    def data(self, broker):
        return self._data

    def kill(self, *brokers):
        self.did.append("kill")

    def start(self, *brokers):
        self.did.append("start")


@pytest.mark.parametrize(("kind", "longer"), [("flip_bits", 0), ("torn_tail", -1)])
def test_files_are_damaged_while_their_server_is_down(data, kind, longer):
    write(data, b1=[record(n, make_value(f"a-{n}")) for n in range(1, 9)])
    path = nats_files.blocks(data, "t-0")[0]
    before, stage = path.read_bytes(), Stage(data)
    fault = nats_faults.KINDS[kind].begin(stage, random.Random(3), {"broker": 1.0, "bits": 3.0})
    assert "t-0" in next(fault)
    assert stage.did == ["kill"]
    after = path.read_bytes()
    assert after != before
    assert (len(after) > len(before)) - (len(after) < len(before)) == longer
    assert next(fault, None) is None
    assert stage.did == ["kill", "start"]


def test_damage_faults_skip_empty_servers(data):
    stage = Stage(data)
    fault = nats_faults.KINDS["torn_tail"].begin(stage, random.Random(3), {"broker": 1.0})
    assert next(fault) is None
    assert stage.did == ["kill", "start"]


def test_a_power_cut_takes_unsynced_writes_and_keeps_synced_ones(tmp_path):
    """Where the user may not mount, the disk says so, and no run uses it."""
    if reason := loop_disk.why_not():
        with pytest.raises(RuntimeError, match="no disk whose power can be cut") as raised:
            loop_disk.LoopDisk(tmp_path / "image", tmp_path / "at")
        assert reason in str(raised.value)
        return
    disk = loop_disk.LoopDisk(tmp_path / "image", tmp_path / "at")
    try:
        with (tmp_path / "at" / "synced").open("wb") as file:
            file.write(b"kept")
            file.flush()
            os.fsync(file.fileno())
            file.write(b" and lost")
            file.flush()
            (tmp_path / "at" / "lost").write_bytes(b"never synced")
            disk.cut()
        disk.mount_again()
        assert [path.name for path in (tmp_path / "at").iterdir() if path.is_file()] == ["synced"]
        assert (tmp_path / "at" / "synced").read_bytes() == b"kept"
    finally:
        disk.close()
    assert not os.path.ismount(tmp_path / "at")
