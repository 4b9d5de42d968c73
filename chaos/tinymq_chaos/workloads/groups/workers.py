"""Workers of queue groups: they take jobs and settle them in every way, keep them too long, leave, and end without a
word. Meanwhile another client seeks the group, deletes it, trims the topic and adds partitions.

    kind          arguments                                        result when ok
    job           PLACE, record, key, keyed                        null: a worker was handed this record; `keyed`: the
                                                                   group has keyed order
    settle        PLACE, verb, delay_s                             null: confirmed. An error leaves it open whether the
                                                                   settlement counted
    group_seek    topic, group, partition, offset                  null
    group_delete  topic, group                                     null
    work_off      topic, group                                     null: everything is settled
    dead_letters  topic, group                                     [[partition, offset, deliveries, RECORD], ...]: all
                                                                   dead letters, by their origin

PLACE is topic, group, partition, offset, generation (of the group), delivery.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tinymq.base.errors import DeadlineExceeded, LeaseLost, TinymqError, UnknownTopic
from tinymq.base.types import Offset
from tinymq.broker.dead_letters.letter import CUT, DELIVERIES, LOST, by_name, origin, strip
from tinymq.client import AsyncClient
from tinymq.client.work.job import Job, JobState
from tinymq.client.work.worker import WorkerCore
from tinymq_chaos.history import Call, Outcome
from tinymq_chaos.records import DRAWN, SHARED, name_in_fields
from tinymq_chaos.workloads.clients.threaded_client import leave
from tinymq_chaos.workloads.context import CALL_S, Context, begin, fail, key_of, pause, recording
from tinymq_chaos.workloads.groups.changes import delete, seek
from tinymq_chaos.workloads.groups.observation import follow_cursors, look_at_cursors
from tinymq_chaos.workloads.producers import NumberedProducer, lone
from tinymq_chaos.workloads.readers import SETTINGS as READER
from tinymq_chaos.workloads.readers import drain
from tinymq_chaos.workloads.trims import trim

PARTITIONS = 2
ADDED_MAX = 1
WORKERS = 3  # workers at a time
POLL_S = 0.5
FLUSH_S = 3.0
HANDLER_MS = 2500.0  # of some workers: what they keep for longer goes to others
RETRY_MS = (200, 600)
GROUP: Mapping[str, object] = {
    "lease_ms": 1500, "ask_ms": 300, "session_ms": 1500, "rejoin_ms": 1000,
    "retry_ms": ",".join(map(str, RETRY_MS)), "deliveries_max": 4,
}  # fmt: skip
WORK_OFF_S = 20.0
VERBS = (("ack", 60), ("nack", 10), ("delay", 8), ("reject", 4), ("extend", 6), ("keep", 12))


async def workers(context: Context) -> None:
    """A group without an order of its records."""
    await _work(context, {**GROUP}, DRAWN)


async def keyed(context: Context) -> None:
    """A group with keyed order, and records that share a few keys."""
    await _work(context, {**GROUP, "ordering": "key"}, SHARED)


async def _work(context: Context, settings: Mapping[str, object], looks: Any) -> None:
    name = await context.topic(PARTITIONS, {"retention_ms": "none"})
    client = context.client(request_timeout_ms=CALL_S * 1000)
    key = await key_of(context, client, name)
    group = WorkerGroup(context, name, key, f"{context.name}-g", settings)
    sender = NumberedProducer(context, f"{context.name}.a", name, key, PARTITIONS, looks)
    workers_at_work = [_run_worker(group, number) for number in range(WORKERS)]
    await asyncio.gather(
        lone(context, sender, client), follow_cursors(context, client, group.place), _disturb(group), *workers_at_work
    )
    await _work_off(group)
    await look_at_cursors(context, client, f"{context.name} end", group.place)
    await _read_dead_letters(group, client)
    await drain(context, client, name, key, "leader")


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """The state that all workers of a group share."""

    context: Context
    topic: str
    key: str  # of the topic, in histories
    name: str
    settings: Mapping[str, object]

    @property
    def keyed(self) -> bool:
        return self.settings.get("ordering") == "key"

    @property
    def place(self) -> dict[str, Any]:
        return {"topic": self.key, "group": self.name}


@dataclass(slots=True)
class WorkerLife:
    """One life of a worker, and the jobs that it keeps."""

    context: Context
    place: Mapping[str, Any]  # topic and group
    process: str
    worker: Any
    lost: set[int] = field(default_factory=set)  # ids of jobs
    keyed: bool = False  # the group has keyed order
    kept: list[Job] = field(default_factory=list)

    def begin(self, job: Job, kind: str, within_s: float = CALL_S, **args: Any) -> Call:
        of_job = {"offset": job.offset, "generation": job.grant.generation, "delivery": job.delivery}
        return begin(
            self.context, self.process, kind, within_s, **self.place, partition=job.partition, **of_job, **args
        )  # fmt: skip


async def _run_worker(group: WorkerGroup, number: int) -> None:
    """One worker after another."""
    context, lives = group.context, 0
    while not context.stop.is_set():
        lives += 1
        client = context.client(request_timeout_ms=CALL_S * 1000)
        life = _start_worker(
            group, client, f"{context.name} {number}.{lives}", prefetch_records=context.rng.choice((1, 4, 40))
        )
        with contextlib.suppress(TinymqError):
            while not context.stop.is_set() and context.rng.random() > 0.05:
                if not await _turn(life):
                    break
        end = context.rng.random()
        if end < 0.3 and not context.stop.is_set():
            await crash(life.worker)
        else:
            with contextlib.suppress(TinymqError):
                await (life.worker.close() if end < 0.7 else leave(life.worker))
        await pause(context, 0.0, 1.0)


def _start_worker(group: WorkerGroup, client: AsyncClient, process: str, prefetch_records: int) -> WorkerLife:
    lost: set[int] = set()
    worker = client.worker(
        group.topic,
        group=group.name,
        group_settings=group.settings,
        on_lost=lambda job, error: lost.add(id(job)),
        prefetch_records=prefetch_records,
        max_handler_ms=group.context.rng.choice((HANDLER_MS, 60_000.0)),
    )
    return WorkerLife(group.context, group.place, process, worker, lost, group.keyed)


async def crash(worker: Any) -> None:
    """End a worker as kill -9 does: it says nothing, and its connections close. One of a client with a thread ends in
    that thread."""
    within = getattr(worker, "within", None)
    await (_end(worker._core) if within is None else within(_end))


async def _end(worker: WorkerCore) -> None:
    worker._closed = True
    await worker._background.close()
    for broker in worker._leaders._brokers.values():
        if broker._task is not None:
            broker._task.cancel()
            await asyncio.gather(broker._task, return_exceptions=True)


async def _turn(life: WorkerLife) -> bool:
    """Take some jobs, and settle them after a while. False: the worker has ended."""
    context, rng = life.context, life.context.rng
    try:
        jobs = await life.worker.poll(POLL_S, rng.randint(1, 6))
    except TinymqError as error:
        fail(begin(context, life.process, "read", **life.place), error)
        return False
    record_jobs(life, jobs)
    await pause(context, 0.0, 2.0 if rng.random() < 0.05 else 0.2)
    calls: list[tuple[Job, Call]] = []
    kept, life.kept = life.kept, []
    for job in [*kept, *jobs]:
        verb = rng.choices([verb for verb, _ in VERBS], [weight for _, weight in VERBS])[0]
        if verb == "keep":
            life.kept.append(job)
            continue
        if verb == "extend":
            job.extend()
        calls.append((job, begin_settlement(life, job, verb)))
    await await_answers(life, calls)
    return True


def record_jobs(life: WorkerLife, jobs: list[Job]) -> None:
    """Write down what a worker was handed out."""
    for job in jobs:
        name = name_in_fields(job.key, job.value, job.headers, job.message.timestamp_us)
        shared = None if job.key is None else job.key.decode()
        life.begin(job, "job", record=name, key=shared, keyed=life.keyed).ok()


def begin_settlement(life: WorkerLife, job: Job, verb: str) -> Call:
    """Begin to settle a job."""
    delay_s = round(life.context.rng.uniform(0.0, 1.0), 3) if verb == "delay" else None
    recorded_verb = {"delay": "nack", "extend": "ack"}.get(verb, verb)
    call = life.begin(job, "settle", verb=recorded_verb, delay_s=delay_s)
    if job._state is not JobState.STARTED:
        call.unknown("LeaseLost")  # it was lost before
    elif recorded_verb == "nack":
        job.nack(delay_s, "no")
    elif recorded_verb == "reject":
        job.reject("never")
    else:
        job.ack()
    return call


async def await_answers(life: WorkerLife, calls: list[tuple[Job, Call]]) -> None:
    """Wait for the answers to settlements, and write them down."""
    error = ""
    try:
        await life.worker.flush(FLUSH_S)
    except (LeaseLost, DeadlineExceeded):
        pass
    except TinymqError as ended:
        error = ended.code
    for job, call in calls:
        if call.outcome is not Outcome.PENDING:
            continue
        if id(job) in life.lost:
            call.unknown("LeaseLost")  # an earlier leader may have carried it out
        elif error or job._partition_work.held.get(job.offset) is job:
            call.unknown(error or "DeadlineExceeded")
        else:
            call.ok()


# ---- what happens to the group beside its workers -------------------------------------------------------------------


async def _disturb(group: WorkerGroup) -> None:
    """Seek, delete, trim, and add a partition, now and then."""
    context = group.context
    client, process, added = context.client(request_timeout_ms=CALL_S * 1000), f"{context.name} disturbs", 0
    while True:
        await pause(context, 0.5, 4.0)
        if context.stop.is_set():
            return
        what = context.rng.choices(("seek", "delete", "trim", "add", "nothing"), (5, 2, 3, 2, 4))[0]
        if what == "seek":
            await seek(context, client, process, group.topic, group.place, context.rng.randrange(PARTITIONS))
        elif what == "delete":
            await delete(context, client, process, group.place)
        elif what == "trim":
            await trim(context, client, process, group.topic, group.key)
        elif what == "add" and added < ADDED_MAX:
            added += 1
            with recording(context, process, "add_partition", topic=group.key) as call:
                call.ok((await client.admin.add_partition(group.topic, timeout=CALL_S)).partition)


# ---- the end --------------------------------------------------------------------------------------------------------


async def _work_off(group: WorkerGroup) -> None:
    """Settle everything that is left, as soon as it comes."""
    context = group.context
    client = context.client(request_timeout_ms=CALL_S * 1000)
    life = _start_worker(group, client, f"{context.name} end", prefetch_records=500)
    until_s = context.clock.monotonic() + WORK_OFF_S
    with recording(context, life.process, "work_off", WORK_OFF_S + 2 * CALL_S, **group.place) as call:
        while True:
            jobs = await life.worker.poll(POLL_S)
            record_jobs(life, jobs)
            await await_answers(life, [(job, begin_settlement(life, job, "ack")) for job in jobs])
            if not jobs and all(each.lag == 0 for each in await client.admin.group_lag(group.name)):
                call.ok()
                break
            if context.clock.monotonic() > until_s:
                call.failed("DeadlineExceeded")
                break
    with contextlib.suppress(TinymqError):
        await life.worker.close()


async def _read_dead_letters(group: WorkerGroup, client: AsyncClient) -> None:
    """Read all dead letters of the topic, when nothing is buried any more."""
    name = f"{group.topic}.dlq"
    with recording(group.context, f"{group.context.name} end", "dead_letters", within_s=15.0, **group.place) as call:
        found: list[list[Any]] = []
        try:
            ends = await client.admin.offsets(name, timeout=CALL_S)
        except UnknownTopic:
            call.ok(found)
            return
        end = {partition: Offset(at.high_watermark) for partition, at in ends.items()}
        reader = client.reader(name, [*end], start="earliest", end=end, replica="leader", **READER)
        try:
            while not reader.at_end:
                for message in await reader.poll(timeout=POLL_S):
                    told, own = origin(message.headers), by_name(message.headers)
                    record = ""
                    if LOST not in own and CUT not in own:
                        headers = tuple(strip(message.headers))
                        record = name_in_fields(message.key, message.value, headers, message.timestamp_us)
                    found.append([told.partition, told.offset, int(own[DELIVERIES]), record])
        finally:
            await reader.close()
        call.ok(found)
