"""Batches of transactions on a produce stream: what they say of their transaction."""

from __future__ import annotations

from tinymq.base.errors import InvalidRequest
from tinymq.broker.state.staged import TransactionId
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.common.presence import require

NUMBER_MAX = (1 << 63) - 1  # as it is stored


def transaction_of(ref: pb.TransactionRef) -> TransactionId:
    """The transaction that a request names. Raises InvalidRequest."""
    require(ref, "producer_id", "epoch", "number")
    if max(ref.producer_id, ref.number) > NUMBER_MAX:
        raise InvalidRequest("no transaction has such a number", hint="take it from the answer to BeginTransaction")
    return TransactionId(ref.producer_id, ref.epoch, ref.number)
