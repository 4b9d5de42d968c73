"""The caller of an RPC: read from the call, checked by the gate, and kept for the method that serves the call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from google.protobuf.message import Message

from tinymq.access.caller import Caller, Credential, quota_name
from tinymq.access.directory import Principal
from tinymq.access.gate import Gate
from tinymq.base.errors import NotReady, Unauthenticated
from tinymq.broker.serve.makers import Maker
from tinymq.net.connection_limits import host_of
from tinymq.net.tls_names import end_of
from tinymq.proto.methods import method_of
from tinymq.rpc.common.access import SOME_TOPIC, Access, AccessTarget, targets
from tinymq.rpc.common.broker_state import Serving
from tinymq.rpc.common.call_context import CLIENT_ID, Context, client_of
from tinymq.rpc.common.call_context import host_of as call_host
from tinymq.rpc.common.forward_mark import FORWARDED

AUTHORIZATION = "authorization"  # metadata key
BEARER = "bearer "  # of any case, as HTTP says
PRINCIPAL = "tinymq-principal"  # metadata key, of a forwarded call: counts only together with a valid mark


def credential_of(context: Context) -> Credential:
    """The credential that a gRPC call presents."""
    metadata: dict[str, Any] = dict(context.invocation_metadata() or ())
    text = str(metadata.get(AUTHORIZATION, ""))
    tls: dict[str, Any] = dict(context.auth_context() or ()) if hasattr(context, "auth_context") else {}
    encrypted = b"ssl" in tls.get("transport_security_type", ())
    pem = next(iter(tls.get("x509_pem_cert", ())), b"")
    ends = end_of(pem) if encrypted and pem else None
    names = [each.decode("utf-8", "replace") for each in tls.get("x509_subject_alternative_name", ())]
    return Credential(
        host=host_of(unquote(call_host(context.peer())).strip("[]")),
        client=str(metadata.get(CLIENT_ID, ""))[:249],
        token=text[len(BEARER) :].strip() if text[: len(BEARER)].lower() == BEARER else "",
        uri=next((name for name in names if name.startswith("tinymq://")), "") if encrypted else "",
        uri_expires_us=int(ends.timestamp() * 1e6) if ends is not None else 0,
        encrypted=encrypted,
    )


@dataclass(frozen=True, slots=True)
class Permits:
    """What the caller of the present RPC may do."""

    gate: Gate
    caller: Caller
    call: str
    forwarded: bool = (
        False  # another broker of the cluster has proven that it counted this call, and checked its caller
    )

    def may_describe(self, kind: str, name: str) -> bool:
        return self.gate.may(self.caller, "describe", kind, name)

    def require(self, operation: str, kind: str, name: str) -> None:
        """Raises Denied, Unauthenticated, NotReady."""
        self.gate.require(self.caller, self.call, operation, kind, name)


_PERMITS: ContextVar[Permits | None] = ContextVar("tinymq_permits", default=None)


def permits() -> Permits | None:
    """What the caller of the present RPC may do. None: callers are not checked."""
    return _PERMITS.get()


def may_describe(kind: str, name: str) -> bool:
    """May the caller of the present RPC see this name?"""
    present = _PERMITS.get()
    return present is None or present.may_describe(kind, name)


def require(operation: str, kind: str, name: str) -> None:
    """Raises Denied unless the caller of the present RPC has a permission that the row of the RPC cannot name."""
    present = _PERMITS.get()
    if present is not None:
        present.require(operation, kind, name)


def require_targets(wanted: Iterable[AccessTarget]) -> None:
    """As `require`, for several."""
    present = _PERMITS.get()
    if present is not None:
        for target in wanted:
            _require(present, target)


def require_topic(operation: str, topic_id: bytes) -> None:
    """As `require`, for a topic by its id, whose name no refusal tells."""
    present = _PERMITS.get()
    if present is not None:
        present.gate.require_topic(present.caller, present.call, operation, topic_id)


def user_of(context: Context) -> str:
    """The name to whose quota a call counts: its user while callers are checked, else its client."""
    present = _PERMITS.get()
    return quota_name(present.caller.principal) if present is not None else client_of(context)


async def count_made(serving: Serving, kind: str, name: str, partitions: int = 0) -> None:
    """Count a topic or a group that the caller of the present RPC is about to make. Raises QuotaExceeded."""
    present = _PERMITS.get()
    if present is not None:
        principal = present.caller.principal
        maker = Maker(principal.name, present.gate.quota_of(principal))
        await serving.running().makers.count(maker, kind, name, partitions)


async def count_partition(serving: Serving, topic: str, *, makes: bool = False) -> None:
    """Count one more partition of a topic, for the user who has made the topic. `makes`: if there is no such topic, the
    call makes it. Raises QuotaExceeded."""
    present = _PERMITS.get()
    if present is None:
        return
    makers = serving.running().makers
    partitions, owner = makers.partitions(topic), makers.owner(topic)
    if makes and not partitions:
        await count_made(serving, "topic", topic, 1)
    elif owner:
        maker = Maker(owner, present.gate.directory.quota_of(owner))
        await makers.count(maker, "topic", topic, partitions + 1)


@contextmanager
def for_the_broker() -> Iterator[None]:
    """Let the body ask what the broker itself needs to know, for a caller who was admitted before."""
    before = _PERMITS.set(None)
    try:
        yield
    finally:
        _PERMITS.reset(before)


@contextmanager
def admitted(serving: Serving, method: str, access: Access, request: Message, context: Context) -> Iterator[None]:
    """Let the body serve a call of `method` by a caller who may make it. Raises Unauthenticated, Denied, NotReady."""
    gate = serving.gate
    if not gate.on or access.operation in ("secret", "switch"):
        yield
        return
    present = _identified(serving, gate, method, request, context)
    if not present.forwarded and present.caller.principal.name:  # the broker that forwards a call has counted it
        serving.quotas.admit_call(quota_name(present.caller.principal))
    _check(present, access, request)
    before = _PERMITS.set(present)
    try:
        yield
    finally:
        _PERMITS.reset(before)


def _identified(serving: Serving, gate: Gate, method: str, request: Message, context: Context) -> Permits:
    metadata: dict[str, Any] = dict(context.invocation_metadata() or ())
    call = f"{method_of(request).service}.{method}"
    credential = credential_of(context)
    mark, text = metadata.get(FORWARDED), str(metadata.get(PRINCIPAL, ""))
    if mark is None or credential.token:
        return Permits(gate, gate.identify(credential), call)
    if not text or not serving.marks.holds(
        serving.running(), str(mark), method, client_of(context), request, principal=text
    ):
        raise NotReady("a call was forwarded without a mark that holds here", hint="ask again")
    return Permits(gate, Caller(read_principal(text), credential.host, credential.client), call, forwarded=True)


def _check(present: Permits, access: Access, request: Message) -> None:
    gate, caller, call = present.gate, present.caller, present.call
    gate.check_known(caller, call)
    if access.operation == "known" or access.filters:
        return
    if access.resource is SOME_TOPIC:
        gate.require_any(caller, call, access.operation, "topic")
        return
    for target in dict.fromkeys(targets(access, request)):
        _require(present, target)


def _require(present: Permits, target: AccessTarget) -> None:
    gate, caller, call = present.gate, present.caller, present.call
    if target.all:
        assert isinstance(target.name, str)
        gate.require_all(caller, call, target.operation, target.kind, target.name)
    elif isinstance(target.name, bytes):
        gate.require_topic(caller, call, target.operation, target.name)
    else:
        gate.require(caller, call, target.operation, target.kind, target.name)


def principal_text(principal: Principal) -> str:
    """The caller of a forwarded call, for the metadata. The mark proves it."""
    return json.dumps([principal.name, list(principal.roles)], separators=(",", ":"))


def read_principal(text: str) -> Principal:
    """The inverse. Raises Unauthenticated."""
    try:
        name, roles = json.loads(text)
        return Principal(str(name), "forwarded", tuple(str(role) for role in roles))
    except (ValueError, TypeError):
        raise Unauthenticated("a forwarded call names no caller") from None
