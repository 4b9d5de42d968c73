"""Forms a cluster, once: every voter is reachable and empty, and all get the same cluster id and first entry. A crash
in between leaves some brokers formed; forming again finds their id and entry, and completes the others.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from tinymq.base.errors import BrokerUnreachable, InvalidRequest, OutcomeUnknown, WrongCluster
from tinymq.base.quantity import named
from tinymq.base.types import METADATA_GROUP
from tinymq.format.entry import parse_entry
from tinymq.net.client_tls import ClientTls
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.proto.errors import from_wire
from tinymq.raft import Replica, make_first_entry
from tinymq.rpc.common.proof import NONCE_BYTES, describe_proof, form_proof
from tinymq.rpc.operator_calls.operator_channel import operator_channel

FORM_TIMEOUT_S_MIN = 10.0  # each broker syncs its new files, and nothing is gained by giving up earlier


@dataclass(frozen=True, slots=True)
class Formed:
    """The result of forming a cluster."""

    cluster_id: bytes
    brokers: tuple[int, ...]  # all voters
    newly: tuple[int, ...]  # those that this call formed; empty when the cluster was formed before


async def form_cluster(
    addresses: Sequence[str],
    secret: bytes,
    now_us: int,
    timeout_s: float = 30.0,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    tls: ClientTls | None = None,
) -> Formed:
    """Form the brokers at `addresses`, their client addresses, into one cluster. A repeat completes it, or does
    nothing. `timeout_s` bounds the whole call, but a broker has at least 10 s to form itself.

    Raises BrokerUnreachable (this call has formed no broker), OutcomeUnknown (some may be formed: call again),
    WrongSecret, WrongCluster, InvalidRequest.
    """
    deadline_s = time.monotonic() + timeout_s
    channels = [operator_channel(address, tls) for address in addresses]
    try:
        stubs = [pb_grpc.AdminStub(channel) for channel in channels]
        nonce = random_bytes(NONCE_BYTES)
        ask = pb.DescribeSelfRequest(nonce=nonce, proof=describe_proof(secret, nonce))
        described = await _all(
            [stub.DescribeSelf(ask, timeout=timeout_s, wait_for_ready=True) for stub in stubs], addresses
        )
        cluster_id, first_entry = _agree(described, now_us, random_bytes)
        newly = [n for n, d in enumerate(described) if not d.cluster_id]
        nonce = random_bytes(NONCE_BYTES)
        form = pb.FormRequest(
            cluster_id=cluster_id,
            first_entry=first_entry,
            nonce=nonce,
            proof=form_proof(secret, nonce, cluster_id, first_entry),
        )
        left_s = max(FORM_TIMEOUT_S_MIN, deadline_s - time.monotonic())
        try:
            await _all([stubs[n].Form(form, timeout=left_s) for n in newly], [addresses[n] for n in newly])
        except BrokerUnreachable as error:
            raise OutcomeUnknown(
                f"some brokers did not say whether they are formed: {error.message}",
                hint="form the cluster again: that completes it",
            ) from None
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))
    ids = tuple(sorted(d.broker_id for d in described))
    return Formed(cluster_id, ids, tuple(sorted(described[n].broker_id for n in newly)))


def _agree(
    described: Sequence[pb.DescribeSelfReply], now_us: int, random_bytes: Callable[[int], bytes]
) -> tuple[bytes, bytes]:
    """Return (cluster id, first entry): those that some brokers already have, or new ones."""
    ids = [d.broker_id for d in described]
    if len(set(ids)) != len(ids):
        raise InvalidRequest(f"brokers {sorted(ids)}: one of them was named twice", hint="name each voter once")
    formed = {(d.cluster_id, d.first_entry) for d in described if d.cluster_id}
    if len(formed) > 1:
        raise WrongCluster("these brokers belong to more than one cluster")
    not_empty = [d.broker_id for d in described if not d.cluster_id and not d.empty]
    if not_empty:
        raise InvalidRequest(f"data directory not empty: {named('broker', not_empty)}", hint="use new data directories")
    if formed:
        cluster_id, first_entry = formed.pop()
        parse_entry(first_entry)
        return cluster_id, first_entry
    replicas = [Replica(d.broker_id, d.incarnation) for d in sorted(described, key=lambda d: d.broker_id)]
    entry = make_first_entry(METADATA_GROUP, replicas, now_us)
    return random_bytes(16), entry.head + entry.payload


async def _all(calls: Sequence[object], addresses: Sequence[str]) -> list[pb.DescribeSelfReply]:
    """Return every reply. Raises the first typed error, or BrokerUnreachable with all addresses that failed."""
    replies = await asyncio.gather(*calls, return_exceptions=True)  # type: ignore[call-overload]
    unreachable = []
    for address, reply in zip(addresses, replies, strict=True):
        if isinstance(reply, grpc.RpcError):
            silent = reply.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            unreachable.append(f"{address}: {'no answer' if silent else reply.details() or reply.code().name}")
        elif isinstance(reply, BaseException):
            raise reply
        elif reply.HasField("error"):
            raise from_wire(reply.error)
    if unreachable:
        raise BrokerUnreachable("; ".join(unreachable), hint="start every voter first")
    return list(replies)
