"""Questions to one broker by its address, and forming or recovering a cluster of several."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tinymq.base.errors import TinymqError

if TYPE_CHECKING:
    from tinymq.proto import tinymq_pb2 as pb
    from tinymq.rpc.services.cluster_formation import Formed
    from tinymq.rpc.services.cluster_recovery import Survey


def status(addresses: Sequence[str], timeout_s: float) -> list[pb.ClusterStatusReply | TinymqError]:
    """What each broker says of itself and its replicas, asked all at once; the error of one that gave no answer."""
    return asyncio.run(_status(addresses, timeout_s))


def state(address: str, timeout_s: float) -> str | None:
    """unformed | starting | running | stopping | failed, by the broker's own word; None when it gave no answer.

    It is running when the registry counts it among the living: from then on it gets and leads partitions.
    """
    (reply,) = status([address], timeout_s)
    if isinstance(reply, TinymqError):
        return None
    registered = any(broker.id == reply.broker_id and broker.alive for broker in reply.brokers)
    return "starting" if reply.state == "running" and not (registered and reply.metadata_leader) else reply.state


def form(addresses: Sequence[str], secret: bytes, timeout_s: float) -> Formed:
    """Form a cluster of the empty brokers at `addresses`, or complete a half-done one."""
    from tinymq.rpc.services.cluster_formation import form_cluster

    return asyncio.run(form_cluster(addresses, secret, time.time_ns() // 1000, timeout_s))


def survey(addresses: Sequence[str], secret: bytes, timeout_s: float) -> Survey:
    """What the brokers at `addresses`, and those that they know, hold of each group."""
    from tinymq.rpc.services.cluster_recovery import take_survey

    return asyncio.run(take_survey(addresses, secret, timeout_s))


def recover(
    found: Survey, addresses: Sequence[str], secret: bytes, timeout_s: float, say: Callable[[str], None]
) -> Survey:
    """Accept what is lost; the cluster afterwards. Gives up when nothing has moved for `timeout_s`."""
    from tinymq.rpc.services.cluster_recovery import Recovering

    return asyncio.run(Recovering(secret, timeout_s, time.monotonic, say).run(found, addresses))


async def _status(addresses: Sequence[str], timeout_s: float) -> list[pb.ClusterStatusReply | TinymqError]:
    from tinymq.base.config import Limits
    from tinymq.client.net.grpc_transport import GrpcConnector
    from tinymq.proto import tinymq_pb2 as pb

    connector = GrpcConnector(Limits())

    async def ask(address: str) -> pb.ClusterStatusReply | TinymqError:
        link = connector.link(address)
        try:
            reply: pb.ClusterStatusReply = await link.call(pb.ClusterStatusRequest(), timeout_s)
            return reply
        except TinymqError as error:
            return error
        finally:
            await link.close()

    return list(await asyncio.gather(*map(ask, addresses)))
