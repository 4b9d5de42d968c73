"""Makes an administrator with the cluster's secret: the first one, or another one after the last token was lost.

The secret is in a file on the brokers' disks. The token is made here, and only its hash is sent.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

import grpc

from tinymq.base.clock import SystemClock
from tinymq.base.errors import BrokerUnreachable, TinymqError, Unavailable, UnsupportedVersion
from tinymq.base.identity.token import hash_token, make_token
from tinymq.base.retry import Backoff, retry_until
from tinymq.net.client_tls import ClientTls
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.proto.errors import from_wire
from tinymq.rpc.common.proof import NONCE_BYTES, administrator_proof, survey_proof
from tinymq.rpc.operator_calls.operator_channel import operator_channel

CALL_TIMEOUT_S = 10.0
BACKOFF = Backoff(0.1, 1.0)


async def make_administrator(
    addresses: Sequence[str], secret: bytes, name: str, timeout_s: float, tls: ClientTls | None = None
) -> str:
    """Make `name` an administrator with a new token, and return the token. Waits for a cluster that was just formed.

    Raises WrongSecret, InvalidName, QuotaExceeded, BrokerUnreachable, OutcomeUnknown.
    """
    token = make_token()
    last: TinymqError = BrokerUnreachable("no broker was asked in time")
    async for attempt in retry_until(time.monotonic() + timeout_s, SystemClock(), BACKOFF):
        for address in addresses:
            try:
                left_s = min(CALL_TIMEOUT_S, max(0.1, attempt.left_s))
                await _ask(operator_channel(address, tls), address, secret, name, hash_token(token), left_s)
                return token
            except (Unavailable, UnsupportedVersion) as error:  # UnsupportedVersion: the feature level is about to rise
                last = error
    raise last


async def _ask(
    channel: grpc.aio.Channel, address: str, secret: bytes, name: str, token_sha256: bytes, timeout_s: float
) -> None:
    async with channel:
        try:
            nonce = secrets.token_bytes(NONCE_BYTES)
            survey = pb.SurveyRequest(nonce=nonce, proof=survey_proof(secret, nonce))
            surveyed: pb.SurveyReply = await pb_grpc.AdminStub(channel).Survey(survey, timeout=timeout_s)
            _check(surveyed)
            request = pb.MakeAdministratorRequest(
                name=name,
                token_sha256=token_sha256,
                challenge=surveyed.challenge,
                proof=administrator_proof(secret, surveyed.challenge, token_sha256, name),
                timeout_ms=int(timeout_s * 1000),
            )
            reply: pb.MakeAdministratorReply = await pb_grpc.UsersStub(channel).MakeAdministrator(
                request, timeout=timeout_s
            )
            _check(reply)
        except grpc.aio.AioRpcError as error:
            raise BrokerUnreachable(f"{address}: {error.details() or error.code().name}") from None


def _check(reply: pb.SurveyReply | pb.MakeAdministratorReply) -> None:
    if reply.HasField("error"):
        raise from_wire(reply.error)
