"""Commands of queue groups, made by hand, and a replica that applies them."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from tests.broker.values import Applied, request
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.broker.state.queue_group import QueueGroup
from tinymq.format.entry import Kind
from tinymq.proto import partition_pb2 as pb

GROUP, ID = "mailer", 7
A, B, C = (bytes([letter]) * 16 for letter in b"abc")


class Queue(Applied):
    """A partition with one queue group, and ten records."""

    def __init__(self, records: int = 10) -> None:
        super().__init__()
        self.run(pb.Command(make=pb.MakeCursor(name=GROUP, kind=pb.QUEUE, group_id=ID)))
        for _ in range(records):
            self.batch(1, size=10)

    @property
    def group(self) -> QueueGroup:
        return self.state.queue_groups.by_name[GROUP]

    @property
    def position(self) -> int:
        return self.state.cursors[GROUP].position

    @property
    def settled(self) -> list[int]:
        return [offset for offset in range(self.state.high_watermark) if self.group.is_settled(offset, self.position)]

    def ref(self, generation: int | None = None, history: int = 0) -> pb.QueueRef:
        generation = self.group.generation if generation is None else generation
        return pb.QueueRef(group=GROUP, group_id=ID, generation=generation, history=history)

    def do(self, **command: object) -> CommandOutcome:
        """Apply one command in an entry of the version that such commands have."""
        data = pb.Commands(commands=[pb.Command(**command)]).SerializeToString()  # type: ignore[arg-type]
        (outcome,) = self._apply(Kind.COMMAND, data, 0, 1)[1]
        assert isinstance(outcome, CommandOutcome)
        return outcome

    def settle(
        self,
        *spans: tuple[int, int],
        failed: Iterable[tuple[int, int, int]] = (),
        in_order: Iterable[tuple[int, int]] = (),
        ref: pb.QueueRef | None = None,
    ) -> CommandOutcome:
        return self.do(
            settle=pb.SettleRecords(
                queue=ref or self.ref(),
                acked=b"".join(struct.pack("<QQ", *span) for span in spans),
                acked_in_order=b"".join(struct.pack("<QQ", *pair) for pair in in_order),
                failed=pack_failed(failed),
            )
        )

    def open_session(self, session: bytes) -> CommandOutcome:
        return self.do(open_session=pb.OpenQueueSession(queue=self.ref(), session=session))

    def end_session(
        self,
        session: bytes,
        failed: Iterable[tuple[int, int, int]] = (),
        returned: Iterable[int] = (),
        ref: pb.QueueRef | None = None,
    ) -> CommandOutcome:
        packed = b"".join(offset.to_bytes(8, "little") for offset in returned)
        end = pb.EndQueueSession(
            queue=ref or self.ref(), session=session, failed=pack_failed(failed), returned=packed
        )  # fmt: skip
        return self.do(end_session=end)

    def bury(
        self, offset: int, message_id: bytes = A, *, topic_id: bytes = B, end: int = 0, ref: pb.QueueRef | None = None
    ) -> CommandOutcome:
        bury = pb.BuryRecord(
            queue=ref or self.ref(), offset=offset, message_id=message_id, topic_id=topic_id, end=end, headers=b"why"
        )
        return self.do(bury=bury)

    def end_burial(self, message_id: bytes = A) -> CommandOutcome:
        return self.do(buried=pb.EndBurial(queue=self.ref(0), message_id=message_id))

    def raise_mark(self, granted_below: int, ref: pb.QueueRef | None = None) -> CommandOutcome:
        return self.do(raise_mark=pb.RaiseGrantMark(queue=ref or self.ref(), granted_below=granted_below))

    def seek(self, offset: int, number: int = 1) -> CommandOutcome:
        seek = pb.Seek(channel=GROUP, kind=pb.QUEUE, group_id=ID, request_id=request(number), offset=offset)
        return self.do(seek=seek)


def pack_failed(failed: Iterable[tuple[int, int, int]]) -> bytes:
    """(offset, delivery, delay_ms) of each."""
    return b"".join(struct.pack("<QII", *each) for each in failed)
