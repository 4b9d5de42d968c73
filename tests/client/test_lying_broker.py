"""A hostile broker against the client's parsers, over real sockets: on every kind of stream it sends malformed,
oversized, truncated, duplicated and endless answers. The client ends with typed errors, within its deadlines and with
bounded memory."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.client.lying_broker import RECORDS, TOPIC, TOPIC_ID, Answer, LyingBroker, Stream
from tinymq import Client
from tinymq.base.config import MIB
from tinymq.base.errors import TinymqError
from tinymq.proto import tinymq_pb2 as pb

DEADLINE_S = 1.5
LATE_S = 20.0  # of a busy machine
MEMORY_BYTES_MAX = 96 * MIB  # that a client may take, whatever it is sent: a few of the largest messages
PIECE = random.Random(7).randbytes(64 * 1024)


def nothing(stream: Stream) -> Iterator[bytes]:
    threading.Event().wait(60.0)
    yield b""


def noise(stream: Stream) -> Iterator[bytes]:
    stream.request()
    while True:
        yield PIECE


def huge_length(stream: Stream) -> Iterator[bytes]:
    """A frame of 4 GiB, and then its bytes."""
    stream.request()
    yield b"\xff" * 8
    while True:
        yield PIECE


def largest_never_whole(stream: Stream) -> Iterator[bytes]:
    """A frame of the largest size that is allowed, of which the last byte never comes."""
    stream.request()
    size = 8 * MIB
    yield size.to_bytes(4, "little") + (0).to_bytes(4, "little")
    yield bytes(size - 1)
    threading.Event().wait(60.0)


def head_over_frame(stream: Stream) -> Iterator[bytes]:
    stream.request()
    yield (10).to_bytes(4, "little") + (20).to_bytes(4, "little") + bytes(30)


def cut_short(stream: Stream) -> Iterator[bytes]:
    stream.request()
    yield stream.packed(_reply(stream, 1))[:-1]


def no_message(stream: Stream) -> Iterator[bytes]:
    """A frame, or a message of gRPC, that is no message of protobuf."""
    stream.request()
    junk = b"\xff" * 40
    yield len(junk).to_bytes(4, "little") * 2 + junk if stream.framed else junk


def endless_ends(stream: Stream) -> Iterator[bytes]:
    """Asks for another connection, again and again, and answers nothing."""
    stream.request()
    kind = {"produce": pb.ProduceReply, "fetch": pb.FetchReply, "work": pb.WorkReply}[stream.kind]
    while True:
        yield stream.packed(kind(ending=True))


def endless_answers_to_nobody(stream: Stream) -> Iterator[bytes]:
    stream.request()
    for number in range(1 << 62, 1 << 63):
        yield stream.packed(_reply(stream, number)) * (64 if stream.framed else 1)


def endless_throttling(stream: Stream) -> Iterator[bytes]:
    """Announces a silence of weeks, and then is silent."""
    stream.request()
    if stream.kind == "produce":
        yield stream.packed(pb.ProduceReply(results=[pb.ProduceResult(request_id=1 << 40, throttled_ms=(1 << 32) - 1)]))
    elif stream.kind == "fetch":
        yield stream.packed(pb.FetchReply(request_id=1 << 40, throttled_ms=(1 << 32) - 1))
    threading.Event().wait(60.0)


def errors_without_sense(stream: Stream) -> Iterator[bytes]:
    """Refuses each request with a code that nobody knows, numbers in texts, and a retry in 10,000 years."""
    while True:
        asked = stream.request()
        error = pb.Error(code="N\0onsense" * 50, message="\x1b[2J" * 1000, retriable=True)
        error.detail["retry_after_ms"] = "9" * 300
        error.detail["leader"] = "-1e999"
        if stream.kind == "produce":
            yield stream.packed(pb.ProduceReply(results=[pb.ProduceResult(request_id=asked.request_id, error=error)]))
        elif stream.kind == "fetch":
            yield stream.packed(pb.FetchReply(request_id=asked.request_id, error=error))
        else:
            for attach in asked.attach:
                yield stream.packed(pb.WorkReply(ended=[pb.WorkEnded(attachment=attach.attachment, error=error)]))


def _reply(stream: Stream, request_id: int) -> object:
    if stream.kind == "produce":
        return pb.ProduceReply(results=[pb.ProduceResult(request_id=request_id, base_offset=1)])
    if stream.kind == "fetch":
        return pb.FetchReply(request_id=request_id, high_watermark=RECORDS, leader=1, leader_epoch=1)
    return pb.WorkReply(settled=[pb.WorkSettled(attachment=request_id, request_id=request_id)])


ANSWERS: list[Answer] = [
    nothing, noise, cut_short, no_message, endless_ends, endless_answers_to_nobody, endless_throttling,
    errors_without_sense,
]  # fmt: skip
FRAMED: list[Answer] = [huge_length, largest_never_whole, head_over_frame]  # gRPC has frames of its own


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def ended(work: Callable[[], object], *, succeeds: bool = False) -> None:
    """The work ends in time, by a typed error, and took bounded memory."""
    before, began_s = resident_bytes(), time.monotonic()
    most = [before]
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            most.append(resident_bytes())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        if succeeds:
            work()
        else:
            with pytest.raises(TinymqError):
                work()
    finally:
        stop.set()
        watching.join()
    assert time.monotonic() - began_s < DEADLINE_S + LATE_S
    assert max(most) - before < MEMORY_BYTES_MAX


def client(broker: LyingBroker) -> Client:
    settings = {"request_timeout_ms": DEADLINE_S * 1000, "attempt_timeout_ms": 500, "connect_timeout_ms": 500}
    return Client(broker.address, **settings)  # type: ignore[arg-type]


CASES = [(answer, framed) for answer in ANSWERS for framed in (True, False)] + [(answer, True) for answer in FRAMED]
SHORT = {(no_message, False), (noise, True)}  # of `make test`; the others run with `make test-long`


def case(answer: Answer, framed: bool) -> object:
    marks = () if (answer, framed) in SHORT else (pytest.mark.long,)
    return pytest.param(answer, framed, marks=marks, id=f"{answer.__name__}-{'framed' if framed else 'grpc'}")


each_case = pytest.mark.parametrize(("answer", "framed"), [case(*each) for each in CASES])


@each_case
def test_a_producer_ends_by_its_deadline(answer: Answer, framed: bool) -> None:
    with LyingBroker(answer, framed) as broker, client(broker) as mq:
        producer = mq.producer(delivery_timeout_ms=DEADLINE_S * 1000)
        ended(lambda: producer.send(TOPIC, b"x").result())


@each_case
def test_a_reader_polls_no_longer_than_it_was_told(answer: Answer, framed: bool) -> None:
    with LyingBroker(answer, framed) as broker, client(broker) as mq, mq.reader(TOPIC) as reader:

        def poll() -> None:
            with suppress(TinymqError):
                assert reader.poll(timeout=DEADLINE_S) == []

        ended(poll, succeeds=True)


@pytest.mark.parametrize(("answer", "framed"), [case(answer, False) for answer in ANSWERS])
def test_a_worker_polls_no_longer_than_it_was_told(answer: Answer, framed: bool) -> None:
    with LyingBroker(answer, framed) as broker, client(broker) as mq:
        worker = mq.worker(TOPIC, group="g")

        def poll() -> None:
            with suppress(TinymqError):
                assert worker.poll(DEADLINE_S) == []
                worker.close()

        ended(poll, succeeds=True)


def frames_of(number: int) -> bytes:
    """Frames as a fetch carries them, each wrong in another way."""
    rng = random.Random(number)
    return rng.choice([rng.randbytes(rng.randrange(1, 5000)), bytes(64), b"\xff" * 64, bytes(63), PIECE])


@pytest.mark.parametrize("framed", [True, False])
def test_frames_that_lie_are_damage_and_nothing_else(framed: bool) -> None:
    """Random frames, with offsets and watermarks that make no sense."""
    numbers = iter(range(1 << 30))

    def answer(stream: Stream) -> Iterator[bytes]:
        while True:
            asked = stream.request()
            if stream.kind != "fetch" or asked.cancel:
                continue
            number = next(numbers)
            reply = pb.FetchReply(
                request_id=asked.request_id, high_watermark=(RECORDS, 0, (1 << 64) - 1)[number % 3],
                log_start=(0, (1 << 63))[number % 2], leader_epoch=number, leader=1,
                next_offset=(0, (1 << 64) - 1, asked.offset)[number % 3],
            )  # fmt: skip
            for _ in range(1 + number % 2):  # some of them twice
                yield stream.packed(reply, frames_of(number))

    with LyingBroker(answer, framed) as broker, client(broker) as mq, mq.reader(TOPIC) as reader:

        def poll() -> None:
            ends_s = time.monotonic() + DEADLINE_S
            while time.monotonic() < ends_s:
                with suppress(TinymqError):
                    assert reader.poll(timeout=0.2) == []

        ended(poll, succeeds=True)


@pytest.mark.parametrize(
    "welcome",
    [b"", b"\xff" * 8, b"\x02\x00\x00\x00\x02\x00\x00\x00\xff\xff", b"\x00" * 7],
    ids=["silent", "huge", "no message", "cut short"],
)
def test_a_stream_port_that_does_not_welcome_is_not_needed(welcome: bytes) -> None:
    """The client goes on over gRPC, which answers."""

    def answer(stream: Stream) -> Iterator[bytes]:
        while True:
            asked = stream.request()
            yield stream.packed(pb.ProduceReply(results=[pb.ProduceResult(request_id=asked.request_id, base_offset=5)]))

    def welcomes() -> Iterator[bytes]:
        yield welcome
        threading.Event().wait(5.0)

    with LyingBroker(answer, True) as broker, client(broker) as mq:
        broker.welcome = welcomes
        producer = mq.producer(delivery_timeout_ms=20_000)
        ended(lambda: producer.send(TOPIC, b"x").result(), succeeds=True)


def test_answers_that_come_twice_count_once() -> None:
    def answer(stream: Stream) -> Iterator[bytes]:
        number = 0
        while True:
            asked = stream.request()
            assert asked.topic_id == TOPIC_ID
            result = pb.ProduceResult(request_id=asked.request_id, base_offset=number)
            number += 1
            yield stream.packed(pb.ProduceReply(results=[result, result])) * 2

    with LyingBroker(answer, True) as broker, client(broker) as mq:
        producer = mq.producer(linger_ms=0)
        offsets = [producer.send(TOPIC, b"x").result().offset for _ in range(20)]
        assert offsets == sorted(set(offsets))
