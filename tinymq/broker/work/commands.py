"""The commands that carry out the proposals of leases. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from tinymq.broker.groups.lease_values import Era, Proposal
from tinymq.broker.state.queue_group import Charge, Span
from tinymq.proto import partition_pb2 as pb

_SPAN = struct.Struct("<QQ")
_CHARGE = struct.Struct("<QII")
_OFFSET = struct.Struct("<Q")


def queue_ref(name: str, group_id: int, era: Era) -> pb.QueueRef:
    return pb.QueueRef(group=name, group_id=group_id, history=era.history, generation=era.generation)


def command_of(proposal: Proposal, name: str, group_id: int) -> pb.Command:
    """The command that carries out one proposal."""
    queue = queue_ref(name, group_id, proposal.era)
    if proposal.opens:
        return pb.Command(open_session=pb.OpenQueueSession(queue=queue, session=proposal.opens))
    if proposal.ends:
        returned = b"".join([_OFFSET.pack(offset) for offset in proposal.returned])
        failed = _pack_charges(proposal.charges)
        return pb.Command(
            end_session=pb.EndQueueSession(queue=queue, session=proposal.ends, failed=failed, returned=returned)
        )
    if proposal.granted_below:
        return pb.Command(raise_mark=pb.RaiseGrantMark(queue=queue, granted_below=proposal.granted_below))
    acked = pack_acks(proposal.acks)
    return pb.Command(settle=pb.SettleRecords(queue=queue, acked=acked, failed=_pack_charges(proposal.charges)))


def pack_acks(offsets: Iterable[int]) -> bytes:
    """Acked records, as commands have them: ranges in order."""
    return b"".join([_SPAN.pack(*span) for span in spans(offsets)])


def spans(offsets: Iterable[int]) -> Iterator[Span]:
    """Combine neighbouring offsets into ranges, in order, so that acks of neighbours cost one range."""
    start = end = -1
    for offset in sorted(offsets):
        if offset == end:
            end += 1
            continue
        if start >= 0:
            yield start, end
        start, end = offset, offset + 1
    if start >= 0:
        yield start, end


def _pack_charges(charges: Iterable[Charge]) -> bytes:
    return b"".join([_CHARGE.pack(*charge) for charge in charges])
