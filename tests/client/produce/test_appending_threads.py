"""Threads append without a lock: each record joins its batch in one step, beside other threads and the loop."""

from __future__ import annotations

import dis
import inspect
import sys
import threading
from collections.abc import Callable
from typing import cast

import pytest

from tests.client.produce.test_batcher import Bench, rows
from tinymq.client.facade.loop_thread import LoopThread
from tinymq.client.facade.producer import Producer
from tinymq.client.produce import batcher
from tinymq.client.produce.delivery import Delivery
from tinymq.client.produce.producer import ProducerCore
from tinymq.client.produce.producer_batch import ProducerBatch
from tinymq.client.produce.send_queue import SendQueue

# What may let another thread go on, or run a signal handler: calls, jumps back, and what allocates an object that the
# collector tracks, whose allocation may run the collector.
STEPS = ("CALL", "PRECALL", "JUMP_BACKWARD", "BUILD_", "MAKE_", "LIST_", "DICT_", "MAP_", "SET_", "YIELD", "SEND",
         "FOR_ITER", "GET_", "IMPORT_", "FORMAT_", "RAISE")  # fmt: skip
THREADS, RECORDS = 4, 2_000


class Asynchronous:
    """The part of an AsyncProducer that its appending threads use. It is closed, so nothing flushes it."""

    closed = True

    def __init__(self, bench: Bench) -> None:
        self.config = bench.config
        self.batcher = bench.batcher
        self.append = bench.batcher.append
        self.append_identified = bench.whole_batches.append_identified
        self.append_delayed = bench.whole_batches.append_delayed


def producer_of(bench: Bench) -> Producer:
    return Producer(cast(LoopThread, None), cast(ProducerCore, Asynchronous(bench)))


def steps_in(code: Callable[..., object], first: str, last: str) -> list[str]:
    """Return the instructions of the lines from the one with `first` to the one with `last` that are no part of one
    step."""
    lines, start = inspect.getsourcelines(code)
    begin = start + next(number for number, line in enumerate(lines) if first in line)
    end = start + next(number for number, line in enumerate(lines) if last in line)
    found = []
    for instruction in dis.get_instructions(code):
        line = instruction.positions.lineno if instruction.positions is not None else None
        if line is not None and begin <= line <= end and instruction.opname.startswith(STEPS):
            found.append(f"{instruction.opname} in line {line}")
    return found


def test_a_record_joins_its_batch_in_one_step() -> None:
    assert steps_in(ProducerBatch.put, "row = self.count", "return row") == []
    assert steps_in(Producer.send, "(batch := queue.open)", "pool.taken_bytes += size") == []
    assert steps_in(Producer.send, "(batch := queue.open)", "delivery = Delivery()") != [], "it would notice a call"


@pytest.mark.parametrize("gil", [True, False], ids=["with a global lock", "without one"])
@pytest.mark.parametrize("keyed", [False, True])
def test_threads_and_the_loop_lose_and_mix_up_nothing(monkeypatch: pytest.MonkeyPatch, gil: bool, keyed: bool) -> None:
    monkeypatch.setattr(batcher, "GIL", gil)
    bench = Bench(partitions=2, batch_bytes_max=3_000, buffer_bytes_max=1 << 30)
    producer, queues, stopping = producer_of(bench), list[SendQueue](), threading.Event()
    taken: list[list[tuple[bytes, Delivery]]] = [[] for _ in range(THREADS)]

    def send(number: int) -> None:
        for count in range(RECORDS):
            value = b"%d-%d" % (number, count)
            taken[number].append((value, producer.send("t", value, key=value if keyed else None)))

    def loop() -> None:
        while not stopping.is_set():
            queues.extend(bench.batcher.woken())
            queues.extend(bench.batcher.seal_due(bench.clock.monotonic(), all_open=True)[0])

    interval, threads = sys.getswitchinterval(), [threading.Thread(target=send, args=(n,)) for n in range(THREADS)]
    looking = threading.Thread(target=loop)
    sys.setswitchinterval(1e-6)
    try:
        for thread in (looking, *threads):
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        stopping.set()
        looking.join()
        sys.setswitchinterval(interval)
    bench.batcher.seal_due(bench.clock.monotonic(), all_open=True)
    batches = [batch for queue in bench.sealed() for batch in queue.sealed]
    assert sum(batch.count for batch in batches) == THREADS * RECORDS
    assert bench.batcher.pool.taken_bytes == sum(batch.bytes for batch in batches)
    assert max(batch.bytes for batch in batches) <= bench.buffer.bytes_max
    stored = {batch: rows(batch) for batch in batches}
    for one in taken:
        for value, delivery in one:
            assert stored[delivery._batch][delivery._row][:2] == (value if keyed else None, value)
            assert delivery._batch.bound == keyed
    for batch in batches:
        last = dict.fromkeys(range(THREADS), -1)
        for _, value, *_ in stored[batch]:
            number, count = map(int, cast(bytes, value).split(b"-"))
            assert last[number] < count, "each thread's records keep their order"
            last[number] = count
