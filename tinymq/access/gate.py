"""The one gate of a broker: it says who calls, and whether the caller may do what it asks for.

    Credential → (identify) → Principal → (require, may) → allowed, or Unauthenticated, Denied, NotReady

While the checks are off, the default, everything is allowed. Streams remember what they may do, and are asked again
after each change. A broker that has not heard the registry for DEAF_S allows nothing any more, because it would not
know of a revocation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

from tinymq.access.audit import Audit, Event
from tinymq.access.caller import QUOTA_PREFIX, Caller, Credential
from tinymq.access.directory import NOBODY, Directory, DirectoryReader, Principal, denied
from tinymq.access.identity import ACCESS, RECORD_KINDS, SWITCH, parse_switch
from tinymq.access.quotas import QUOTA
from tinymq.access.stream_guard import StreamGuard
from tinymq.base.clock import Clock
from tinymq.base.config import BrokerConfig, is_loopback
from tinymq.base.errors import NotReady, QuotaExceeded, TinymqError, Unauthenticated, UnknownTopic
from tinymq.base.identity.quota import NONE, Quota
from tinymq.base.identity.token import hash_token
from tinymq.base.types import TopicId
from tinymq.net.tls_names import USER_URI, shown
from tinymq.registry.service import RegistryService

LISTEN_S = 1.5  # between two questions for the registry's newest version, while callers are checked
REFRESH_S = 2.0  # for an answer; together with LISTEN_S below the 5 s in which a revocation takes effect
DEAF_S = 25.0  # without an answer, this broker allows nothing; below the 30 s that users are told
TOKEN_CHARS_MAX = 8192
CONNECTION_MS = 1000  # after which a caller with too many connections may try again

if TYPE_CHECKING:
    from tinymq.access.issuer import Issuer

logger = structlog.get_logger("tinymq.access")


class Gate:
    """The gate of one broker process. Unless `required`, it is open until the registry says that checks are on."""

    def __init__(
        self,
        clock: Clock,
        audit: Audit,
        *,
        required: bool = False,
        plain_tokens: bool = False,
        issuer: Issuer | None = None,
        spawn: Callable[[Coroutine[Any, Any, None]], object] = lambda work: work.close(),
    ) -> None:
        """`required`: callers are checked whatever the registry says, and before it has said anything. `plain_tokens`:
        take tokens over connections without TLS from other machines, too. `issuer`: of further tokens. `spawn` runs a
        task."""
        self.generation = 0
        self.on = required
        self.audit = audit
        self._clock = clock
        self._plain_tokens = plain_tokens
        self._issuer = issuer
        self._spawn = spawn
        self._registry: RegistryService | None = None
        self._reader = DirectoryReader()
        self._directory = Directory()
        self._read_at = -1  # the generation of `_directory`
        self._required = required
        self.deaf = required  # until the registry has answered once
        self._listening = False
        self._guards: dict[StreamGuard, None] = {}  # the open streams
        self._open: Counter[str] = Counter()  # of them, by user

    # ---- what the registry says -------------------------------------------------------------------------------

    def follow(self, registry: RegistryService) -> None:
        """Decide by this registry from now on."""
        self._registry = registry
        if self._issuer is not None:
            self._issuer.keys.changed = self._look_again
            self._spawn(self._issuer.keys.run())
        for kind in (*RECORD_KINDS, QUOTA):
            registry.watch_records(kind, self._changed)
        self._changed()

    @property
    def directory(self) -> Directory:
        """Who is known now."""
        if self._read_at != self.generation and self._registry is not None:
            self._directory = self._reader.read(self._registry)
            self._read_at = self.generation
        return self._directory

    def _changed(self) -> None:
        assert self._registry is not None, "it watches the registry that it follows"
        self.on = self._required or parse_switch(self._registry.get_record(ACCESS, SWITCH))
        if self.on and not self._listening:
            self._listening = self.deaf = True  # until the first answer: what was stored may be out of date
            self._spawn(self._listen())
        self._look_again()

    async def _listen(self) -> None:
        """Hear the registry at least every LISTEN_S, until the checks are off."""
        assert self._registry is not None, "it listens to the registry that it follows"
        heard_s = -math.inf
        while self.on:
            try:
                await self._registry.refresh(REFRESH_S)
                heard_s = self._clock.monotonic()
            except TinymqError as error:
                logger.info("registry_unheard", reason=error.message)
            deaf = self._clock.monotonic() - heard_s >= DEAF_S
            if deaf != self.deaf:
                self.deaf = deaf
                self._look_again()
            self._end_expired()
            await self._clock.sleep(LISTEN_S)
        self._listening = self.deaf = False

    def _look_again(self) -> None:
        """Let every answer be given again, those of open streams included."""
        self.generation += 1
        for guard in list(self._guards):
            guard.look_again()

    def _end_expired(self) -> None:
        now_us = self._clock.wall_us()
        for guard in list(self._guards):
            if 0 < guard.caller.principal.expires_us <= now_us:
                guard.look_again()

    def now_us(self) -> int:
        """The wall time by which proofs expire."""
        return self._clock.wall_us()

    # ---- who calls ----------------------------------------------------------------------------------------------

    def identify(self, credential: Credential) -> Caller:
        """Return the caller, also while callers are not checked; NOBODY if it shows nothing. Raises Unauthenticated."""
        try:
            return Caller(self._principal(credential), credential.host, credential.client)
        except Unauthenticated:
            if self.on:  # by host alone: a stranger must not fill the log with names of its choice
                self._note(Caller(NOBODY, credential.host, ""), "", "describe", "cluster", "", allowed=False)
            raise

    def _principal(self, credential: Credential) -> Principal:
        if not credential.token:
            name = credential.uri.removeprefix(USER_URI)
            if not name or name == credential.uri:
                return NOBODY
            return self.present(Principal(name, "certificate", expires_us=credential.uri_expires_us))
        if not (credential.encrypted or self._plain_tokens or is_loopback(credential.host)):
            hint = "connect with TLS; a broker takes such tokens only with tokens_without_tls = true"
            raise Unauthenticated("a token came over a connection that others can read", hint=hint)
        if len(credential.token) > TOKEN_CHARS_MAX:
            raise Unauthenticated(f"a token of {len(credential.token)} characters")
        if self._issuer is not None and self._issuer.takes(credential.token):
            return self.present(self._issuer.principal(credential.token))
        sha256 = hash_token(credential.token)
        held = self.directory.holder(sha256)
        if held is None:
            raise Unauthenticated("the token is unknown, or revoked")
        user, token = held
        return self.present(Principal(user.name, "token", expires_us=token.expires_us, sha256=sha256))

    def present(self, principal: Principal) -> Principal:
        """Return the principal if its proof still holds. Raises Unauthenticated."""
        if 0 < principal.expires_us <= self._clock.wall_us():
            since = shown(datetime.fromtimestamp(principal.expires_us / 1e6, UTC))
            raise Unauthenticated(f"the {principal.proof} of {principal.name!r} has expired on {since}")
        if principal.proof == "jwt" and (self._issuer is None or not self._issuer.holds(principal)):
            raise Unauthenticated(f"the key that signed the token of {principal.name!r} is not the issuer's any more")
        if principal.sha256 and self.directory.holder(principal.sha256) is None:
            raise Unauthenticated(f"the token of {principal.name!r} is revoked")
        return principal

    def holds(self, principal: Principal) -> bool:
        """Does the proof of a caller still hold, or is nobody checked?"""
        try:
            self.present(principal)
        except Unauthenticated:
            return not self.on
        return True

    # ---- what a caller may do -----------------------------------------------------------------------------------

    def check_known(self, caller: Caller, call: str) -> None:
        """Raises Unauthenticated for a caller who has proven nothing, NotReady if this broker is deaf."""
        if not self.on:
            return
        if self.deaf:
            message = "this broker has not heard the registry for long: any grant may have been revoked"
            raise NotReady(message, hint="ask another broker")
        if caller.principal is NOBODY:
            self._note(Caller(NOBODY, caller.host, ""), call, "describe", "cluster", "", allowed=False)
            raise Unauthenticated("this cluster checks who calls, and the call shows no token")

    def may(self, caller: Caller, operation: str, kind: str, name: str = "") -> bool:
        """Is it allowed? Records nothing: for answers that leave out what a caller may not see."""
        return not self.on or self.directory.rights_of(caller.principal).allow(operation, kind, name)

    def require(
        self,
        caller: Caller,
        call: str,
        operation: str,
        kind: str,
        name: str = "",
        *,
        shown: str = "",
        once: bool = False,
    ) -> None:
        """Raises Unauthenticated, Denied, NotReady unless it is allowed, and records the decision.

        `shown`: how the resource is named to a caller who may not know its name. `once`: the caller asks once only.
        """
        if not self.on:
            return
        self.check_known(caller, call)
        allowed = self.directory.rights_of(caller.principal).allow(operation, kind, name)
        self._note(caller, call, operation, kind, name, allowed=allowed, once=once)
        if not allowed:
            seen = not shown or self.may(caller, "describe", kind, name)
            raise denied(caller.principal, operation, kind, name, name if seen else shown)

    def require_topic(
        self, caller: Caller, call: str, operation: str, topic_id: bytes, *, once: bool = False
    ) -> None:  # fmt: skip
        """As `require`, for a topic by its id. Raises UnknownTopic, too. No refusal tells the name of an id."""
        if not self.on:
            return
        self.check_known(caller, call)
        if self.directory.rights_of(caller.principal).administers:
            self._note(caller, call, operation, "topic", self._name_or_id(topic_id), allowed=True, once=once)
            return  # the call itself says what is wrong with an unknown id
        name, shown = self._topic_name(topic_id), f"of id {topic_id.hex()}"
        self.require(caller, call, operation, "topic", name, shown=shown, once=once)

    def require_any(self, caller: Caller, call: str, operation: str, kind: str) -> None:
        """As `require`, for a permission on any one name of the kind."""
        self.check_known(caller, call)
        if self.on and not self.directory.rights_of(caller.principal).allow_any(operation, kind):
            self._note(caller, call, operation, kind, "*", allowed=False)
            raise denied(caller.principal, operation, kind, "NAME", "any name")

    def require_all(self, caller: Caller, call: str, operation: str, kind: str, prefix: str) -> None:
        """As `require`, for a permission on all names with a prefix."""
        self.check_known(caller, call)
        if self.on and not self.directory.rights_of(caller.principal).allow_all(operation, kind, prefix):
            self._note(caller, call, operation, kind, f"{prefix}*", allowed=False)
            raise denied(caller.principal, operation, kind, f"{prefix}*", f"{prefix}*")

    def note_change(self, caller: Caller, call: str, what: str) -> None:
        """Record a change of users, grants or the checks themselves."""
        self._note(caller, call, "admin", "cluster", "", allowed=True, change=what)

    def _name_or_id(self, topic_id: bytes) -> str:
        topic = self._registry.get_topic_by_id(TopicId(topic_id)) if self._registry is not None else None
        return topic.name if topic is not None else topic_id.hex()

    def _topic_name(self, topic_id: bytes) -> str:
        """The name of a topic, which decides about access to it. Raises UnknownTopic, NotReady."""
        assert self._registry is not None, "callers are checked by a registry"
        topic = self._registry.get_topic_by_id(TopicId(topic_id))
        if topic is not None:
            return topic.name
        if self._registry.is_deleted(TopicId(topic_id)):
            raise UnknownTopic("the topic was deleted")
        raise NotReady("this broker does not know the topic yet", hint="ask another broker, or try again shortly")

    def guard(self, credential: Credential, call: str) -> StreamGuard:
        """Return the guard of a stream, which `close` ends. Raises Unauthenticated, NotReady, QuotaExceeded."""
        try:
            caller = self.identify(credential)
        except Unauthenticated:
            if self.on:
                raise
            caller = Caller(NOBODY, credential.host, credential.client)
        self.check_known(caller, call)
        name, bound = caller.principal.name, self.quota_of(caller.principal).connections
        if bound is not None and self._open[name] >= bound:
            raise QuotaExceeded(
                f"user {name!r} has {self._open[name]} connections to this broker, and may have {bound}",
                hint="close some of them", retry_after_ms=CONNECTION_MS,
            )  # fmt: skip
        guard = StreamGuard(self, caller, call)
        self._guards[guard] = None
        self._open[name] += 1
        return guard

    def quota_by_name(self, name: str) -> Quota:
        """As `quota_of`, by the name to whose quota a caller counts (`quota_name`); any other name is a client's."""
        user = name.removeprefix(QUOTA_PREFIX)
        return self.directory.quota_of(user) if self.on and user and user != name else NONE

    def quota_of(self, principal: Principal) -> Quota:
        """The quota of a caller; without bounds while callers are not checked."""
        return self.directory.quota_of(principal.name) if self.on and principal.name else NONE

    def guards(self, name: str, kind: str = "") -> list[StreamGuard]:
        """The open streams of a user, or those of them that may do something to a resource of this kind."""
        return [
            guard
            for guard in self._guards
            if guard.caller.principal.name == name and (not kind or any(of == kind for _, of, _ in guard.allowed))
        ]

    def forget(self, guard: StreamGuard) -> None:
        """End the guard of a stream that has ended."""
        if self._guards.pop(guard, guard) is None:
            name = guard.caller.principal.name
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]

    def _note(
        self, caller: Caller, call: str, operation: str, kind: str, name: str, *, allowed: bool, once: bool = False,
        **more: Any,
    ) -> None:  # fmt: skip
        resource = kind if kind == "cluster" else f"{kind}:{name}"
        principal = caller.principal
        event = Event(
            who=principal.name, proof=principal.proof, host=caller.host, client=caller.client, call=call,
            operation=operation, resource=resource, allowed=allowed,
        )  # fmt: skip
        self.audit.note(event, once=once, **more)


def make_gate(config: BrokerConfig, clock: Clock, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> Gate:
    """The gate of a broker of this configuration."""
    required, plain_tokens = config.access_required, config.tokens_without_tls
    issuer = None
    if config.jwt.issuer:
        from tinymq.access.issuer import make_issuer  # here: it needs an extra

        issuer = make_issuer(config.jwt, clock)
    return Gate(clock, Audit(clock), required=required, plain_tokens=plain_tokens, issuer=issuer, spawn=spawn)
