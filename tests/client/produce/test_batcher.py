"""How records become batches: when, of what size and in which send queue. Invalid records are refused."""

from __future__ import annotations

import itertools
import random
import threading
from datetime import datetime, timedelta, timezone

import pytest

from tests.fakes.manual_clock import ManualClock
from tinymq.base.config import Limits
from tinymq.base.errors import BatchTooLarge, Closed, InvalidConfig, InvalidRequest, UnknownPartition
from tinymq.client.common.config import ProducerConfig
from tinymq.client.common.topic_settings import UNBOUNDED, TopicBounds
from tinymq.client.consume.records import Chunk
from tinymq.client.produce.batcher import Batcher
from tinymq.client.produce.partitioner import keyed
from tinymq.client.produce.producer_batch import ProducerBatch
from tinymq.client.produce.send_queue import SendQueue
from tinymq.client.produce.whole_batches import WholeBatches
from tinymq.format.batch import HEADER_SIZE, decode_batch, pack_batch

KEYED = b"hejsan"


def pack_size(batch: ProducerBatch) -> int:
    assert batch.message is not None
    return HEADER_SIZE + batch.message.size


class Bench:
    """A batcher of one topic, with a manual clock."""

    def __init__(self, partitions: int = 4, **settings: object) -> None:
        self.clock = ManualClock()
        self.wakes = 0
        self.config = ProducerConfig(**settings)  # type: ignore[arg-type]
        self.batcher = Batcher(
            self.config,
            Limits(),
            monotonic=self.clock.monotonic,
            wall_ns=self.clock.wall_ns,
            rng=random.Random(1),
            wake=self.wake,
        )
        self.whole_batches = WholeBatches(self.batcher, self.config, Limits())
        self.buffer = self.batcher.buffers.open("t", b"i" * 16, range(partitions))

    def wake(self) -> None:
        self.wakes += 1

    def append(
        self, value: bytes | None = b"v", key: bytes | None = None, partition: int | None = None
    ) -> ProducerBatch:
        delivery = self.batcher.append("t", value, key, None, None, partition)
        assert delivery is not None
        return delivery._batch

    def sealed(self) -> list[SendQueue]:
        return [queue for queue in self.buffer.queues if queue.sealed]


def rows(batch: ProducerBatch) -> list[tuple[object, ...]]:
    assert batch.message is not None
    payload = pack_batch(batch.message, record_count=batch.count, codec=batch.codec)
    assert len(payload) == HEADER_SIZE + batch.message.size
    messages = Chunk(0, 0, 1, decode_batch(payload, Limits()), 0).messages("t")
    return [(m.key, m.value, m.headers, m.timestamp_us) for m in messages]


def test_a_lingering_batch_is_sealed_when_due() -> None:
    bench = Bench(linger_ms=5)
    batch = bench.append()
    assert bench.wakes == 1
    bench.batcher.woken()
    queues, due_s = bench.batcher.seal_due(bench.clock.monotonic())
    assert (queues, due_s) == ([], bench.clock.monotonic() + 0.005)
    bench.append()
    assert bench.wakes == 1, "the loop's timer is set: nobody needs to wake it"
    bench.clock.advance(0.005)
    queues, due_s = bench.batcher.seal_due(bench.clock.monotonic())
    assert queues == [batch.queue]
    assert due_s is None
    assert (batch.count, batch.message is not None) == (2, True)


def test_a_full_batch_is_encoded_by_the_thread_that_filled_it() -> None:
    bench = Bench(batch_bytes_max=1000)
    first = bench.append(b"x" * 400, KEYED)
    assert bench.append(b"x" * 400, KEYED) is first
    assert first.message is None
    second = bench.append(b"x" * 400, KEYED)
    assert second is not first
    assert second.queue is first.queue
    assert first.count == 2
    assert first.message is not None
    assert bench.batcher.woken() == [first.queue]


def test_a_record_larger_than_a_batch_travels_alone() -> None:
    bench = Bench(batch_bytes_max=1000)
    small = bench.append(b"s", KEYED)
    large = bench.append(b"x" * 5000, KEYED)
    after = bench.append(b"s", KEYED)
    assert len({id(b) for b in (small, large, after)}) == 3
    assert large.count == 1


def test_a_batch_is_no_larger_than_what_its_topic_takes_at_all() -> None:
    bench = Bench()

    def counts(records: int, size: int, bounds: TopicBounds) -> list[int]:
        """Return the sizes of the batches that these records become."""
        bench.batcher.buffers.open("t", b"i" * 16, range(4), bounds)
        batches = list(dict.fromkeys(bench.append(b"x" * size, KEYED) for _ in range(records)))
        bench.batcher.seal_due(0, all_open=True)
        assert all(pack_size(batch) <= bounds.bytes_max for batch in batches)
        return [batch.count for batch in batches]

    assert counts(7, 1, TopicBounds(records_max=3)) == [3, 3, 1]
    assert counts(3, 1, TopicBounds(records_max=1)) == [1, 1, 1]
    assert counts(20, 1000, TopicBounds(bytes_max=14_000)) == [9, 9, 2]
    assert counts(3, 100, TopicBounds(bytes_max=1000)) == [1, 1, 1], "whatever one of them comes to"
    assert counts(20, 1000, UNBOUNDED) == [20]


def test_records_without_a_key_share_one_partition_per_batch() -> None:
    bench = Bench(batch_bytes_max=1000)
    batches = [bench.append(b"x" * 100) for _ in range(100)]
    queues = [b.queue.partition for b in dict.fromkeys(batches)]
    assert len(queues) > 10
    assert all(a != b for a, b in itertools.pairwise(queues))
    assert set(queues) == {0, 1, 2, 3}


def test_keyless_batches_go_where_they_can() -> None:
    bench = Bench(batch_bytes_max=1000)
    bench.buffer.usable = [2]
    first = bench.append(b"x" * 300).queue.partition  # chosen before
    assert {bench.append(b"x" * 300).queue.partition for _ in range(50)} <= {first, 2}
    assert bench.append().queue.partition == 2


def test_keys_stay_in_their_partition() -> None:
    bench = Bench(batch_bytes_max=200)
    for i in range(200):
        key = b"key-%d" % (i % 20)
        assert bench.append(b"x" * 50, key).queue.partition == keyed(key, 4)
    assert bench.append(b"", b"").queue is bench.buffer.sticky, "an empty key counts as none, as in librdkafka"


def test_partitions_are_chosen_by_the_partitioner() -> None:
    assert Bench().append(partition=3).queue.partition == 3
    turns = Bench(partitioner="round_robin")
    assert [turns.append(key=b"same").queue.partition for _ in range(5)] == [0, 1, 2, 3, 0]
    own = Bench(partitioner=lambda key, n: n - 1)
    assert own.append(key=b"x").queue.partition == 3
    sticky = Bench(partitioner="sticky")
    assert sticky.append(key=b"1").queue is sticky.append(key=b"2").queue
    with pytest.raises(UnknownPartition):
        Bench().append(partition=-1)
    assert Bench().batcher.append("t", b"v", None, None, None, 4) is None, "it may be new: the producer asks"
    with pytest.raises(UnknownPartition):
        Bench(partitioner=lambda key, n: n).append()


def test_everything_given_is_in_the_batch() -> None:
    bench = Bench()
    when = datetime(2024, 5, 6, 7, 8, 9, microsecond=123456, tzinfo=timezone(timedelta(hours=2)))
    append = bench.batcher.append
    append("t", b"a", None, {"x": b"1", "y": "text"}, when, 0)
    append("t", None, b"k", [("x", b"1"), ("x", None)], 1234, 0)
    append("t", bytearray(b"c"), memoryview(b"kk"), None, None, 0)  # type: ignore[arg-type]
    bench.batcher.seal_due(0, all_open=True)
    (batch,) = bench.buffer.queues[0].sealed
    at_us = int(when.timestamp()) * 1_000_000 + 123456
    assert rows(batch) == [
        (None, b"a", (("x", b"1"), ("y", b"text")), at_us),
        (b"k", None, (("x", b"1"), ("x", None)), 1234),
        (b"kk", b"c", (), bench.clock.wall_us()),
    ]


BAD_RECORDS: dict[str, tuple[object, ...]] = {
    "text": ("text", None, None, None),
    "a number": (5, None, None, None),
    "a text key": (b"", "key", None, None),
    "headers of numbers": (b"", None, {"a": 1}, None),
    "headers without names": (b"", None, [(None, b"")], None),
    "headers as text": (b"", None, "ab", None),
    "a lone surrogate": (b"", None, {"\ud800": b""}, None),
    "a naive time": (b"", None, None, datetime(2024, 1, 1)),
    "a time out of range": (b"", None, None, 1 << 60),
    "a time of another kind": (b"", None, None, 1.5),
}


@pytest.mark.parametrize("what", BAD_RECORDS)
def test_an_invalid_record_is_refused_and_takes_no_space(what: str) -> None:
    bench = Bench()
    value, key, headers, timestamp = BAD_RECORDS[what]
    with pytest.raises(InvalidRequest) as raised:
        bench.batcher.append("t", value, key, headers, timestamp, None)  # type: ignore[arg-type]
    assert raised.value.hint not in ("", InvalidRequest.default_hint), "it says what to pass instead"
    assert bench.batcher.pool.taken_bytes == 0
    assert not bench.batcher.open_queues


def test_limits_of_the_brokers_are_known_here() -> None:
    bench = Bench()
    with pytest.raises(BatchTooLarge):
        bench.append(bytes(Limits().record_bytes_max + 1))
    with pytest.raises(InvalidConfig):
        Bench(batch_bytes_max=Limits().batch_bytes_max)


def test_the_buffer_is_bounded() -> None:
    bench = Bench(buffer_bytes_max=10_000, batch_bytes_max=1000)
    taken: list[ProducerBatch] = []
    while (delivery := bench.batcher.append("t", b"x" * 976, None, None, None, None)) is not None:
        taken.append(delivery._batch)
    assert len(taken) == 10
    woken: list[int] = []
    bench.batcher.pool.when_free(lambda: woken.append(1))
    for batch in taken[:2]:
        bench.batcher.pool.release(batch.bytes)
    assert woken == []
    bench.batcher.pool.release(taken[2].bytes)
    assert woken == [1], "room for two batches: those who wait go on"
    bench.batcher.pool.when_free(lambda: woken.append(2))
    assert woken == [1, 2]


def test_a_lane_with_enough_on_its_way_keeps_filling_its_batch() -> None:
    bench = Bench(linger_ms=0)
    queue = bench.append(key=KEYED).queue
    for _ in range(2):
        bench.append(key=KEYED)
        bench.batcher.seal_due(bench.clock.monotonic())
        assert queue.take(bench.clock.monotonic()) is not None
    waiting = bench.append(key=KEYED)
    assert bench.batcher.seal_due(bench.clock.monotonic()) == ([], None)
    queue.acknowledged(queue.in_flight[0])
    assert bench.batcher.seal_due(bench.clock.monotonic()) == ([queue], None)
    assert waiting.message is not None


def test_a_closed_batcher_takes_nothing() -> None:
    bench = Bench()
    bench.append(key=KEYED)
    bench.batcher.close()
    assert bench.batcher.append("t", b"", None, None, None, None) is None
    bench.batcher.buffers.by_topic["t"] = bench.buffer  # a thread that had looked it up just before
    bench.batcher.seal_due(0, all_open=True)
    with pytest.raises(Closed):
        bench.append(key=KEYED)


def test_threads_share_a_batcher_and_keep_their_own_order() -> None:
    bench = Bench(partitions=1, batch_bytes_max=4000)
    count = 5000

    def run(name: bytes) -> None:
        for i in range(count):
            bench.append(b"%s %d" % (name, i))

    threads = [threading.Thread(target=run, args=(name,)) for name in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.batcher.seal_due(0, all_open=True)
    values = [row[1] for batch in bench.buffer.queues[0].sealed for row in rows(batch)]
    assert len(values) == 3 * count
    for name in (b"a", b"b", b"c"):
        mine = [v for v in values if isinstance(v, bytes) and v.startswith(name)]
        assert mine == [b"%s %d" % (name, i) for i in range(count)]
