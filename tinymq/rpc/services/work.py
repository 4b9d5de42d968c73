"""The stream of one worker: translates its messages for tinymq.broker.work, and writes the answers in their order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from tinymq.access.stream_guard import Access, StreamGuard
from tinymq.base.errors import Closed, InvalidRequest, TinymqError
from tinymq.base.group_config import RETRY_MS_MAX
from tinymq.base.types import check_channel_name
from tinymq.broker.groups.lease_values import Era, Grant
from tinymq.broker.serve.slices import Slice
from tinymq.broker.work.attachment import Attached, Attachment, AttachRequest, Refused, Verb
from tinymq.broker.work.granted_records import GrantedBatch
from tinymq.broker.work.group_leader import GroupLeader
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import to_wire
from tinymq.rpc.common.broker_state import Serving
from tinymq.rpc.common.reply_stream import start_writer

GRANTS_MAX = 10_000  # in one settlement, and held at one partition
UNANSWERED_MAX = 1000  # settlements of one stream, before the broker stops reading it
ATTACHMENTS_MAX = 1024  # of one stream
QUEUED_BYTES_MAX = 8 << 20  # of records that wait to be sent: the broker grants no more meanwhile
GRANTS_PER_COST = 40  # grants that a slice of the loop settles at the cost of one small batch
SESSION_BYTES = 16
ERROR_BYTES_MAX = 4096
CLIENT_CHARS_MAX = 249

_VERBS = {
    pb.WorkSettle.START: Verb.START,
    pb.WorkSettle.ACK: Verb.ACK,
    pb.WorkSettle.NACK: Verb.NACK,
    pb.WorkSettle.REJECT: Verb.REJECT,
    pb.WorkSettle.EXTEND: Verb.EXTEND,
    pb.WorkSettle.RELEASE: Verb.RELEASE,
}


class WorkReplies(Protocol):
    """The sink for a stream's answers."""

    async def write(self, message: pb.WorkReply) -> None:
        """Raises Closed when the client has disconnected."""
        ...


class WorkStream:
    """One worker's stream, from its opening to its end. It is the WorkerPort of its attachments."""

    def __init__(self, serving: Serving, replies: WorkReplies, client: str, guard: StreamGuard) -> None:
        """`guard` calls `refuse`."""
        self.client = client[:CLIENT_CHARS_MAX]
        self._guard = guard
        self._reads: dict[int, tuple[str, bytes]] = {}  # by attachment: its group and its topic
        self._serving = serving
        self._replies = replies
        self._attachments: dict[int, tuple[GroupLeader, Attachment]] = {}
        self._newest = 0  # attachment
        self._unanswered: dict[int, int] = {}  # settlements, by attachment
        self._queued = pb.WorkReply()  # answers that wait to be written
        self._queued_bytes = 0
        self._more: list[pb.WorkReply] = []  # the messages to write after `_queued`
        self._wake = asyncio.Event()
        self._room = asyncio.Event()  # wakes the reader
        self._ended = False
        self._slice = Slice(serving.slices)
        self.heard_s = 0.0

    async def run(self, requests: AsyncIterator[pb.WorkRequest]) -> None:
        """Run until the client has ended its side, or until the stream breaks. Raises InvalidRequest."""
        writer = start_writer(self._write())
        try:
            async for request in requests:
                self._hear()
                await self._take(request)
                while sum(self._unanswered.values()) > UNANSWERED_MAX:
                    self._room.clear()
                    await self._room.wait()
            self._detach_all()
            self._ended = True
            self._wake.set()
            with suppress(Closed):
                await writer
        finally:
            # Both ends have noticed: a client that is not attached starts nothing more.
            self._detach_all()
            self._ended = True
            writer.cancel()

    def _hear(self) -> None:
        workers = self._serving.workers
        if workers is not None:
            self.heard_s = workers.now_s()

    def _detach_all(self) -> None:
        for leader, attachment in list(self._attachments.values()):
            leader.detach(attachment, by_worker=True)
        self._attachments.clear()
        self._reads.clear()
        self._unanswered.clear()

    def announce_end(self) -> None:
        """Ask the worker to attach again on another stream."""
        self._in_order("ending").ending = True

    def refuse(self, access: Access, error: TinymqError) -> None:
        """End the attachments of a group or a topic that this worker may not read any more."""
        for number, reads in list(self._reads.items()):
            found = self._attachments.get(number)
            if found is not None and access[2] in reads:
                found[0].detach(found[1], by_worker=True)
                self.ended(number, error)

    # ---- from the worker

    async def _take(self, request: pb.WorkRequest) -> None:
        for attach in request.attach:
            self._attach(attach)
        touched: dict[GroupLeader, None] = {}
        for settle in request.settle:
            leader = self._settle(settle)
            if leader is not None:
                touched[leader] = None
            if self._slice.spend(1 + sum(run.count for run in settle.grants.runs) // GRANTS_PER_COST):
                await self._slice.rest()
        for credit in request.credit:
            found = self._attachments.get(credit.attachment)
            if found is not None:
                found[1].raise_credit(credit.records, credit.bytes)
                touched[found[0]] = None
        for detach in request.detach:
            found = self._attachments.pop(detach.attachment, None)
            if found is not None:
                self._unanswered.pop(detach.attachment, None)
                found[0].detach(found[1], by_worker=True, leave=detach.leave)
                self.ended(detach.attachment, None)
        for leader in touched:
            leader.pump()
        if request.ping:
            self._queued.pong = request.ping
            self._wake.set()

    def _attach(self, attach: pb.WorkAttach) -> None:
        if attach.attachment <= self._newest:
            raise InvalidRequest(f"attachment {attach.attachment}, after {self._newest}", hint="numbers rise")
        self._newest = attach.attachment
        if not attach.HasField("partition"):
            raise InvalidRequest("an attachment without its partition", hint="a number that is 0 is sent, too")
        if len(attach.session) != SESSION_BYTES:
            raise InvalidRequest(
                f"a session of {len(attach.session)} bytes", hint=f"a session is {SESSION_BYTES} random bytes"
            )
        check_channel_name(attach.group)
        if len(self._attachments) >= ATTACHMENTS_MAX:
            raise InvalidRequest(f"more than {ATTACHMENTS_MAX} attachments", hint="use a stream for each topic")
        held = [*read_grants(attach.held, started=False), *read_grants(attach.started, started=True)]
        try:
            wanted = AttachRequest(
                number=attach.attachment,
                topic_id=attach.topic_id,
                partition=attach.partition,
                group=attach.group,
                group_id=attach.group_id,
                session=attach.session,
                held=held,
                credit_records=attach.credit_records,
                credit_bytes=attach.credit_bytes,
                term=attach.term,
            )
            self._guard.check(("read", "group", attach.group))
            self._guard.check(("read", "topic", attach.topic_id))
            self._reads[attach.attachment] = (attach.group, attach.topic_id)
            self._attachments[attach.attachment] = self._serving.working().attach(self, wanted)
        except TinymqError as error:
            self.ended(attach.attachment, error)

    def _settle(self, settle: pb.WorkSettle) -> GroupLeader | None:
        verb = _VERBS.get(settle.verb)
        if verb is None:
            raise InvalidRequest(f"a settlement of verb {settle.verb}", hint="it comes from a newer version")
        if settle.delay_ms > RETRY_MS_MAX:
            raise InvalidRequest(f"a delay of {settle.delay_ms} ms", hint=f"at most {RETRY_MS_MAX}")
        grants = read_grants([settle.grants], started=verb is Verb.START)
        found = self._attachments.get(settle.attachment)
        if found is None:
            return None  # it is over, and the worker is told
        leader, attachment = found
        if settle.request_id:
            self._unanswered[settle.attachment] = self._unanswered.get(settle.attachment, 0) + 1
        delay_ms = settle.delay_ms if settle.HasField("delay_ms") else None
        error = settle.error.encode()[:ERROR_BYTES_MAX].decode(errors="ignore")
        leader.settle(attachment, settle.request_id, verb, grants, delay_ms, error)
        return leader

    # ---- to the worker: WorkerPort

    @property
    def is_full(self) -> bool:
        return self._queued_bytes > QUEUED_BYTES_MAX

    def attached(self, attachment: int, answer: Attached) -> None:
        self._in_order("attached").attached.add(
            attachment=attachment,
            term=answer.term,
            history=answer.era.history,
            generation=answer.era.generation,
            known=answer.known,
            lost=write_grants(answer.lost),
            settled=write_grants(answer.settled),
            lease_ms=int(answer.lease_s * 1000),
            session_ms=int(answer.session_s * 1000),
            rejoin_ms=int(answer.rejoin_s * 1000),
            keyed=answer.keyed,
        )

    def granted(
        self, attachment: int, grants: Sequence[Grant], batches: Sequence[GrantedBatch], size: int, left_s: float
    ) -> None:
        self._queued_bytes += size
        reply = self._in_order("granted")
        (runs,) = write_grants(grants)
        reply.granted.add(
            attachment=attachment,
            grants=runs,
            batches=[
                pb.WorkBatch(
                    base_offset=batch.base_offset,
                    append_time_us=batch.append_time_us,
                    payload=batch.payload,
                    payload_crc=batch.payload_crc,
                )
                for batch in batches
            ],
            started=grants[0].started,
            bytes=size,
            left_ms=int(left_s * 1000),
        )
        self._more.append(self._queued)  # one message for each: together they could exceed the largest message
        self._queued = pb.WorkReply()

    def settled(self, attachment: int, request_id: int, refused: Sequence[Refused]) -> None:
        self._unanswered[attachment] = self._unanswered.get(attachment, 1) - 1
        self._room.set()
        parts = [
            pb.WorkRefused(error=to_wire(each.error), grants=grants)
            for each in refused
            for grants in write_grants(each.grants)
        ]
        self._in_order("settled").settled.add(attachment=attachment, request_id=request_id, refused=parts)

    def asked(self, attachment: int, grants: Sequence[Grant]) -> None:
        for each in write_grants(grants):
            self._in_order("asked").asked.add(attachment=attachment, grants=each)

    def revoked(self, attachment: int, grants: Sequence[Grant], error: TinymqError) -> None:
        for each in write_grants(grants):
            self._in_order("revoked").revoked.add(attachment=attachment, grants=each, error=to_wire(error))

    def ended(self, attachment: int, error: TinymqError | None) -> None:
        self._attachments.pop(attachment, None)
        self._reads.pop(attachment, None)
        self._unanswered.pop(attachment, None)
        self._room.set()
        wire = None if error is None else to_wire(error)
        self._in_order("ended").ended.add(attachment=attachment, error=wire)

    def _in_order(self, field: str) -> pb.WorkReply:
        """The message for an answer of this field. A worker handles the fields of a message in the order of their
        numbers, so an answer after one with a higher number begins another message."""
        queued = self._queued
        if any(number > _NUMBERS[field] and getattr(queued, name) for name, number in _NUMBERS.items()):
            self._more.append(queued)
            self._queued = queued = pb.WorkReply()
        self._wake.set()
        return queued

    async def _write(self) -> None:
        while True:
            messages, self._more = [*self._more, self._queued], []
            self._queued = pb.WorkReply()
            for message in messages:
                if message.ByteSize():
                    await self._replies.write(message)
                    size = sum(granted.bytes for granted in message.granted)
                    was_full, self._queued_bytes = self.is_full, self._queued_bytes - size
                    if was_full and not self.is_full:
                        for leader in dict.fromkeys(leader for leader, _ in self._attachments.values()):
                            leader.pump()
            if not self._more and not self._queued.ByteSize():
                if self._ended:
                    return
                self._wake.clear()
                await self._wake.wait()


_NUMBERS = {field.name: field.number for field in pb.WorkReply.DESCRIPTOR.fields}


def read_grants(packed: Iterable[pb.Grants], *, started: bool) -> list[Grant]:
    """Raises InvalidRequest for more than a worker may hold."""
    found: list[Grant] = []
    for grants in packed:
        era = Era(grants.history, grants.generation)
        for run in grants.runs:
            if not 0 < run.count <= GRANTS_MAX - len(found) or (run.offset | run.number) >> 62:
                raise InvalidRequest(f"a run of {run.count} grants", hint=f"1 to {GRANTS_MAX} grants in one message")
            offset, number, term, delivery = run.offset, run.number, run.term, run.delivery
            found += [Grant(offset + n, term, number + n, delivery, era, started) for n in range(run.count)]
    return found


def write_grants(grants: Iterable[Grant]) -> list[pb.Grants]:
    """Grants as runs, by history and generation."""
    by_era: dict[Era, pb.Grants] = {}
    last: tuple[int, int, int, int] | None = None
    run: pb.GrantRun | None = None
    before: Era | None = None
    for grant in grants:
        offset, term, number, delivery, era, _ = grant
        if run is not None and last == (offset - 1, term, number - 1, delivery) and before == era:
            run.count += 1
        else:
            packed = by_era.get(era)
            if packed is None:
                packed = by_era[era] = pb.Grants(history=era.history, generation=era.generation)
            run = packed.runs.add(offset=offset, count=1, term=term, number=number, delivery=delivery)
        last, before = (offset, term, number, delivery), era
    return list(by_era.values())
