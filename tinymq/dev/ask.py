"""Calls to brokers by their addresses: their status, and forming or recovering a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tinymq.base.errors import TinymqError

if TYPE_CHECKING:
    from tinymq.net.client_tls import ClientTls
    from tinymq.proto import tinymq_pb2 as pb
    from tinymq.rpc.operator_calls.cluster_formation import Formed
    from tinymq.rpc.operator_calls.cluster_recovery import Survey


def status(
    addresses: Sequence[str], timeout_s: float, tls: ClientTls | None = None, token: str = ""
) -> list[pb.ClusterStatusReply | TinymqError]:
    """Ask all brokers at once for their status and their replicas. The result has the error of a broker that fails."""
    return asyncio.run(_status(addresses, timeout_s, tls, token))


def state(address: str, timeout_s: float, tls: ClientTls | None = None, token: str = "") -> str | None:
    """Return the state that a broker reports, or None if it does not answer.

    The states are unformed, starting, running, stopping and failed. A broker is running once the registry lists it as
    alive: from then on it is assigned partitions and leads them.
    """
    (reply,) = status([address], timeout_s, tls, token)
    if isinstance(reply, TinymqError):
        return None
    registered = any(broker.id == reply.broker_id and broker.alive for broker in reply.brokers)
    return "starting" if reply.state == "running" and not (registered and reply.metadata_leader) else reply.state


def form(addresses: Sequence[str], secret: bytes, timeout_s: float, tls: ClientTls | None = None) -> Formed:
    """Form a cluster of the empty brokers at `addresses`, or complete a formation that was interrupted."""
    from tinymq.rpc.operator_calls.cluster_formation import form_cluster

    return asyncio.run(form_cluster(addresses, secret, time.time_ns() // 1000, timeout_s, tls=tls))


def administrator(
    addresses: Sequence[str], secret: bytes, name: str, timeout_s: float, tls: ClientTls | None = None
) -> str:
    """Make an administrator with the cluster's secret, and return its token."""
    from tinymq.rpc.operator_calls.first_administrator import make_administrator

    return asyncio.run(make_administrator(addresses, secret, name, timeout_s, tls))


def check_callers(servers: str, authority: str, token: str) -> None:
    """Let the cluster check its callers from now on, as the administrator with this token."""
    from tinymq.client import Client

    with Client(servers, token=token, tls_ca=authority) as mq:
        mq.access.switch(True)


def survey(addresses: Sequence[str], secret: bytes, timeout_s: float, tls: ClientTls | None = None) -> Survey:
    """Ask the brokers at `addresses`, and the brokers that they know, for their replicas of every group."""
    from tinymq.rpc.operator_calls.cluster_recovery import calls_over_grpc, take_survey

    return asyncio.run(take_survey(addresses, secret, timeout_s, calls_over_grpc(tls)))


def recover(
    found: Survey, addresses: Sequence[str], secret: bytes, timeout_s: float, say: Callable[[str], None],
    tls: ClientTls | None = None,
) -> Survey:  # fmt: skip
    """Recover every group that lost its quorum, accepting the loss of data, and return a new survey.

    Gives up after `timeout_s` without progress.
    """
    from tinymq.rpc.operator_calls.cluster_recovery import Recovering, calls_over_grpc

    return asyncio.run(Recovering(secret, timeout_s, time.monotonic, say, calls_over_grpc(tls)).run(found, addresses))


async def _status(
    addresses: Sequence[str], timeout_s: float, tls: ClientTls | None, token: str
) -> list[pb.ClusterStatusReply | TinymqError]:
    from tinymq.base.config import Limits
    from tinymq.base.identity.token import SecretText
    from tinymq.client.net.grpc_transport import GrpcConnector
    from tinymq.client.net.token_sender import TokenSender
    from tinymq.proto import tinymq_pb2 as pb

    connector = GrpcConnector(Limits(), token=TokenSender(SecretText(token)), tls=tls)

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
