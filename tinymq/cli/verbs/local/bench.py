"""`tinymq bench`: how fast a cluster takes and gives records, with percentiles.

With --rate, the record number n is due n / rate seconds after the start, and its latency counts from then, whether the
client could send it at that time or not. So a stall of the cluster shows in all records that were due during it
("coordinated omission" hides them).
"""

from __future__ import annotations

import statistics
import struct
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from tinymq.base.errors import DeadlineExceeded, InvalidRequest, NotDelivered, TinymqError
from tinymq.cli.common.exits import Exit, explain
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_table
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions

if TYPE_CHECKING:
    from tinymq.client import Delivery, Producer, Reader

HELP = """
Example: tinymq bench produce bench --rate 1000

Example: tinymq bench e2e bench -o json
"""

app = App(name="bench", help="Measure a cluster from here: produce, consume, e2e.", help_epilogue=HELP)

RECORDS_MAX = 10_000_000  # their latencies are kept: 8 bytes each
NUMBER = struct.Struct("<Q")  # the first bytes of a record of `e2e`
PERCENTILES = (50.0, 90.0, 99.0, 99.9)
POLL_S = 0.5
SLEEP_S_MIN = 0.0005

Topic = Annotated[str, Parameter(help="The topic; it keeps the records.")]
Records = Annotated[int, Parameter(name=["--records", "-n"], help="How many records.")]
Size = Annotated[int, Parameter(help="Bytes of each record.")]
Rate = Annotated[float, Parameter(help="Records per second that are due. 0: as many as the client can send.")]


@app.command
def produce(
    topic: Topic,
    /,
    *,
    records: Records = 100_000,
    size: Size = 100,
    rate: Rate = 0,
    acks: Literal["quorum", "leader", "none"] = "quorum",
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> int:
    """Send records, and measure the time until each is acknowledged."""
    check(records, size, rate)
    latencies_s, failures = array("d"), 0
    first: TinymqError | None = None
    with servers.connect() as mq, mq.producer(acks=acks) as producer:
        mq.admin.describe_topic(topic)
        began = time.perf_counter()

        def ended(delivery: Delivery, due_s: float) -> None:
            nonlocal failures, first
            if (error := delivery.exception(0)) is not None:
                failures, first = failures + 1, first or error
            else:
                latencies_s.append(time.perf_counter() - due_s)

        def send(number: int, due_s: float) -> None:
            producer.send(topic, bytes(size)).add_done_callback(lambda delivery: ended(delivery, due_s))

        offer(records, rate, send)
        with suppress(NotDelivered):  # counted, and the first error is shown
            producer.flush()
        took_s = time.perf_counter() - began
    report("produce", latencies_s, took_s, size, output, failed=failures)
    if first is not None:
        explain(first)
    return Exit.FAILED if failures else Exit.OK


@app.command
def consume(
    topic: Topic,
    /,
    *,
    records: Records = 100_000,
    replica: Literal["leader", "follower", "nearest", "any"] = "leader",
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Read the topic from its start, at most so many records, and measure how many come per second."""
    check(records, 1, 0)
    with servers.connect() as mq, mq.reader(topic, end="latest", replica=replica) as reader:
        began, count, size = time.perf_counter(), 0, 0
        while count < records:
            found = reader.poll(POLL_S, min(10_000, records - count))
            if not found and reader.at_end:
                break
            count += len(found)
            size += sum(len(message.value or b"") for message in found)
        took_s = time.perf_counter() - began
    show("consume", {"records": count, **rates(count, size, took_s)}, output)


@app.command
def e2e(
    topic: Topic,
    /,
    *,
    records: Records = 5_000,
    size: Size = 100,
    rate: Rate = 1_000,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Send records at a rate, read them back, and measure the time from when each was due until it is read.

    Nothing else may write to the topic meanwhile.
    """
    check(records, max(size, NUMBER.size), rate)
    if not rate:
        raise InvalidRequest("--rate 0: the latency of e2e is that of one rate", hint="give --rate 1000")
    due_s: dict[int, float] = {}
    with servers.connect() as mq, mq.reader(topic, start="latest") as reader, mq.producer(linger_ms=0) as producer:
        reader.poll(0.0)  # from here on it sees what is written
        began = time.perf_counter()
        padding = bytes(max(0, size - NUMBER.size))
        sending = threading.Thread(target=_send_numbered, args=(producer, topic, records, rate, padding, due_s))
        sending.start()
        latencies_s = _receive(reader, records, due_s, servers.timeout)
        sending.join()
        took_s = time.perf_counter() - began
    report("e2e", latencies_s, took_s, size, output)


def _send_numbered(
    producer: Producer, topic: str, records: int, rate: float, padding: bytes, due_s: dict[int, float]
) -> None:
    def send(number: int, due: float) -> None:
        due_s[number] = due
        producer.send(topic, NUMBER.pack(number) + padding)

    offer(records, rate, send)


def _receive(reader: Reader, records: int, due_s: dict[int, float], silence_s: float) -> Sequence[float]:
    """Return the latency of each record. Raises DeadlineExceeded if none arrives for `silence_s`."""
    latencies_s, heard = array("d"), time.perf_counter()
    while len(latencies_s) < records:
        found = reader.poll(POLL_S)
        now = time.perf_counter()
        if found:
            heard = now
        elif now - heard > silence_s:
            raise DeadlineExceeded(f"no record arrived for {silence_s:.0f} s: {len(latencies_s)} of {records} are read")
        for message in found:
            due = due_s.get(NUMBER.unpack_from(message.value or bytes(NUMBER.size))[0])
            if due is not None:
                latencies_s.append(now - due)
    return latencies_s


def check(records: int, size: int, rate: float) -> None:
    """Raise InvalidRequest for numbers out of range."""
    if not 1 <= records <= RECORDS_MAX:
        raise InvalidRequest(f"-n {records} is out of range", hint=f"1 to {RECORDS_MAX}")
    if not 0 <= size <= 1 << 20:
        raise InvalidRequest(f"--size {size} is out of range", hint="0 to 1048576")
    if not 0 <= rate <= 1e7:
        raise InvalidRequest(f"--rate {rate:g} is out of range", hint="0 to 10000000")


def offer(
    records: int,
    rate: float,
    send: Callable[[int, float], None],
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Call `send(number, due)` for each record when it is due. A late call does not move the times of the others."""
    began = clock()
    for number in range(records):
        due = began + number / rate if rate else clock()
        if (wait_s := due - clock()) > SLEEP_S_MIN:
            sleep(wait_s)
        send(number, due)


def percentiles(latencies_s: Sequence[float]) -> dict[str, float]:
    """Return the percentiles of latencies in milliseconds, and the greatest."""
    if len(latencies_s) < 2:
        return dict.fromkeys(("p50", "max"), 1000 * latencies_s[0]) if latencies_s else {}
    cuts = statistics.quantiles(latencies_s, n=1000, method="inclusive")
    named = {f"p{percent:g}": 1000 * cuts[round(percent * 10) - 1] for percent in PERCENTILES}
    return {**named, "max": 1000 * max(latencies_s)}


def rates(records: int, size: int, took_s: float) -> dict[str, float]:
    """Return the records and the megabytes per second."""
    seconds = max(took_s, 1e-9)
    return {"seconds": took_s, "records_per_s": records / seconds, "mb_per_s": size / 1e6 / seconds}


def report(
    kind: str, latencies_s: Sequence[float], took_s: float, size: int, output: Output, *, failed: int = 0
) -> None:
    """Print the result of a measurement with latencies."""
    count = len(latencies_s)
    latency = {f"{name}_ms": value for name, value in percentiles(latencies_s).items()}
    show(kind, {"records": count, "failed": failed, **rates(count, count * size, took_s), **latency}, output)


def show(kind: str, result: dict[str, Any], output: Output) -> None:
    """Print a result as a table or as JSON."""
    if output == "json":
        print_json({"bench": kind, **result})
    else:
        print_table(
            ["measured", "value"],
            [(name, f"{value:,.2f}" if isinstance(value, float) else f"{value:,}") for name, value in result.items()],
        )
