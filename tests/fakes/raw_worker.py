"""A worker of a queue group without the client's logic: it sends what a test says, and keeps what it gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from tests.fakes.raw_client import WAIT_S, Raw
from tinymq.base.config import Limits
from tinymq.format.batch import decode_batch
from tinymq.format.entry import crc32c
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc

LIMITS = Limits()
Place = tuple[bytes, int]  # topic id, partition


class RawWorker:
    """One stream to one broker, with one attachment at a time."""

    def __init__(self, raw: Raw, group: pb.GroupInfo, place: Place, session: bytes = b"") -> None:
        self.raw, self.group, self.place = raw, group, place
        self.session = (session or group.name.encode()).ljust(16, b".")
        self.values: dict[int, bytes] = {}
        self.grants: dict[int, pb.Grants] = {}  # by offset: one grant each, the newest
        self.attached: pb.WorkAttached | None = None
        self.ended: pb.WorkEnded | None = None
        self.settled: dict[int, pb.WorkSettled] = {}
        self.revoked: list[int] = []
        self.asked: list[int] = []
        self.pongs = 0
        self._number = 0
        self._requests = 0
        self._out: asyncio.Queue[pb.WorkRequest | None] = asyncio.Queue()
        self._came = asyncio.Event()
        stub = pb_grpc.WorkersStub(raw.channel)
        self.call = stub.Work(self._send_all())
        self._task = asyncio.create_task(self._read())

    async def _send_all(self) -> AsyncIterator[pb.WorkRequest]:
        while (request := await self._out.get()) is not None:
            yield request

    async def _read(self) -> None:
        async for reply in self.call:
            for attached in reply.attached:
                self.attached = attached
            for granted in reply.granted:
                self._granted(granted)
            for settled in reply.settled:
                self.settled[settled.request_id] = settled
            self.asked += [offset for asked in reply.asked for offset in _offsets(asked.grants)]
            for revoked in reply.revoked:
                assert revoked.error.code == "LeaseLost"
                self.revoked += _offsets(revoked.grants)
            for ended in reply.ended:
                self.ended = ended
            self.pongs = reply.pong or self.pongs
            self._came.set()

    def _granted(self, granted: pb.WorkGranted) -> None:
        values: dict[int, bytes] = {}
        for batch in granted.batches:
            assert crc32c(batch.payload) == batch.payload_crc
            records = decode_batch(batch.payload, LIMITS)
            values |= {batch.base_offset + n: value for n, value in enumerate(records.column(1).to_pylist())}
        for run in granted.grants.runs:
            for n in range(run.count):
                one = pb.Grants(history=granted.grants.history, generation=granted.grants.generation)
                one.runs.add(
                    offset=run.offset + n, count=1, term=run.term, number=run.number + n, delivery=run.delivery
                )
                self.grants[run.offset + n] = one
                self.values[run.offset + n] = values[run.offset + n]

    def send(self, **fields: Any) -> None:
        self._out.put_nowait(pb.WorkRequest(**fields))

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until `holds` is true, looked at after each answer; any wait is a sign of life."""
        async with asyncio.timeout(WAIT_S):
            while not holds():
                self._came.clear()
                try:
                    await asyncio.wait_for(self._came.wait(), 0.5)
                except TimeoutError:
                    self.send()

    async def attach(self, credit: int = 1000, size: int = 1 << 20, **fields: Any) -> pb.WorkAttached:
        self._number += 1
        self.attached = self.ended = None
        self.send(
            attach=[
                pb.WorkAttach(
                    attachment=self._number,
                    topic_id=self.place[0],
                    partition=self.place[1],
                    group=self.group.name,
                    group_id=self.group.group_id,
                    session=self.session,
                    credit_records=credit,
                    credit_bytes=size,
                    **fields,
                )
            ]
        )
        await self.until(lambda: self.attached or self.ended)
        assert self.attached is not None, self.ended
        return self.attached

    def settle(self, verb: str, *offsets: int, answer: bool = True, **fields: Any) -> int:
        """Send one settlement, and return its request id."""
        grants = pb.Grants(history=self.grants[offsets[0]].history, generation=self.grants[offsets[0]].generation)
        for offset in offsets:
            grants.runs.extend(self.grants[offset].runs)
        self._requests += 1
        number = self._requests if answer else 0
        one = pb.WorkSettle(
            attachment=self._number, request_id=number, verb=pb.WorkSettle.Verb.Value(verb), grants=grants, **fields
        )
        self.send(settle=[one])
        return number

    async def settled_by(self, number: int) -> list[str]:
        """The codes of what was refused of a settlement."""
        await self.until(lambda: number in self.settled)
        return [refused.error.code for refused in self.settled[number].refused]

    async def do(self, verb: str, *offsets: int, **fields: Any) -> list[str]:
        """Settle, and wait for the answer."""
        return await self.settled_by(self.settle(verb, *offsets, **fields))

    def held(self, *offsets: int) -> list[pb.Grants]:
        return [self.grants[offset] for offset in offsets]

    def detach(self, leave: bool = False) -> None:
        self.send(detach=[pb.WorkDetach(attachment=self._number, leave=leave)])

    def credit(self, records: int, size: int = 1 << 30) -> None:
        self.send(credit=[pb.WorkCredit(attachment=self._number, records=records, bytes=size)])

    async def close(self) -> None:
        """End this side of the stream."""
        self._out.put_nowait(None)
        await asyncio.wait([self._task])

    async def break_off(self) -> None:
        """End the stream as the death of the process would."""
        self.call.cancel()
        await asyncio.wait([self._task])


def _offsets(grants: pb.Grants) -> list[int]:
    return [run.offset + n for run in grants.runs for n in range(run.count)]


class Workers:
    """Workers of one cluster's groups, for tests that say which broker leads. Ends all of them."""

    def __init__(self) -> None:
        self._raws: dict[str, Raw] = {}
        self._workers: list[RawWorker] = []

    def raw(self, address: str) -> Raw:
        return self._raws.setdefault(address, Raw(address))

    def worker(self, address: str, group: pb.GroupInfo, place: Place, session: bytes = b"") -> RawWorker:
        self._workers.append(RawWorker(self.raw(address), group, place, session))
        return self._workers[-1]

    async def close(self) -> None:
        for worker in self._workers:
            await worker.break_off()
        for raw in self._raws.values():
            await raw.channel.close()
