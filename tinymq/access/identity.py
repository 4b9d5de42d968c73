"""Users and roles as the registry stores them: values, their bytes, and the changes of them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from google.protobuf.message import DecodeError

from tinymq.base.errors import AlreadyExists, CorruptData, InvalidRequest, NotFound, QuotaExceeded
from tinymq.base.identity.grants import KINDS, OPERATIONS, Grant, Kind, Operation
from tinymq.base.types import check_consumer_name
from tinymq.proto import access_pb2 as pb
from tinymq.registry.state.values import MetadataRecord

USER, ROLE = "user", "role"  # kinds of registry records
ACCESS, SWITCH = "access", "switch"  # kind and name of the record that switches the checks on
RECORD_KINDS = (USER, ROLE, ACCESS)

HASH_BYTES = 32
ID_CHARS = 12
GRANTS_MAX = 200  # of one user or role: with the longest names, they fit into a record
ROLES_MAX = 32
TOKENS_MAX = 64
LABEL_CHARS_MAX = 100


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a user, without the token itself."""

    sha256: bytes
    label: str = ""
    created_us: int = 0
    expires_us: int = 0  # 0: never

    @property
    def id(self) -> str:
        """By which people name it: it says nothing about the token."""
        return self.sha256.hex()[:ID_CHARS]


@dataclass(frozen=True, slots=True)
class Identity:
    """A user, or a role: a named set of grants that users share."""

    name: str
    is_role: bool
    grants: tuple[Grant, ...] = ()  # in order, each once
    roles: tuple[str, ...] = ()  # in order, each once; a role has none
    tokens: tuple[Token, ...] = ()  # the oldest first; a role has none
    created_us: int = 0
    command_id: bytes = b""
    version: int = 0  # of the registry's record; 0: it is not stored yet

    @property
    def kind(self) -> str:
        return ROLE if self.is_role else USER

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"

    def pack(self) -> bytes:
        return pb.Identity(
            grants=[pb.Grant(operation=g.operation, kind=g.kind, name=g.name, prefix=g.prefix) for g in self.grants],
            roles=self.roles,
            tokens=[
                pb.Token(sha256=t.sha256, label=t.label, created_us=t.created_us, expires_us=t.expires_us)
                for t in self.tokens
            ],
            created_us=self.created_us,
            command_id=self.command_id,
        ).SerializeToString(deterministic=True)


def parse_identity(record: MetadataRecord) -> Identity:
    """The user or role of a registry record. Grants that this build does not know grant nothing. Raises CorruptData."""
    try:
        stored = pb.Identity.FromString(record.value)
    except DecodeError:
        raise CorruptData(f"this build cannot read the record of {record.kind} {record.name!r}") from None
    return Identity(
        name=record.name,
        is_role=record.kind == ROLE,
        grants=tuple(
            Grant(cast(Operation, g.operation), cast(Kind, g.kind), g.name, g.prefix)
            for g in stored.grants
            if g.operation in OPERATIONS and g.kind in KINDS
        ),
        roles=tuple(stored.roles),
        tokens=tuple(Token(t.sha256, t.label, t.created_us, t.expires_us) for t in stored.tokens),
        created_us=stored.created_us,
        command_id=stored.command_id,
        version=record.version,
    )


def parse_switch(record: MetadataRecord | None) -> bool:
    """Whether callers are checked. A record that does not parse counts as on: nothing is opened by damage."""
    if record is None:
        return False
    try:
        return bool(pb.Switch.FromString(record.value).enabled)
    except DecodeError:
        return True


def pack_switch(enabled: bool, by: str) -> bytes:
    return pb.Switch(enabled=enabled, by=by).SerializeToString(deterministic=True)


# ---- changes: each returns the identity afterwards, or the same object if nothing changes -------------------------

Change = Callable[[Identity], Identity]


def new_identity(name: str, *, is_role: bool, now_us: int, command_id: bytes = b"") -> Identity:
    """Raises InvalidName for a name that no user or role can have."""
    return Identity(check_consumer_name(name), is_role, created_us=now_us, command_id=command_id)


def check_unmade(present: Identity, command_id: bytes) -> None:
    """Raises AlreadyExists unless the same call made it."""
    if not command_id or present.command_id != command_id:
        raise AlreadyExists(f"{present} exists", hint=f"show it: tinymq user list {present.name}")


def granted(grant: Grant) -> Change:
    """Add a grant. Raises QuotaExceeded."""

    def change(identity: Identity) -> Identity:
        if grant in identity.grants:
            return identity
        _check_room(identity, "grants", len(identity.grants), GRANTS_MAX)
        return replace(identity, grants=tuple(sorted((*identity.grants, grant))))

    return change


def revoked(grant: Grant) -> Change:
    """Take a grant back. Raises NotFound, which says what a prefix still allows."""

    def change(identity: Identity) -> Identity:
        if grant not in identity.grants:
            hint = f"a grant is taken back as it was given; see tinymq acl list {identity.name}"
            raise NotFound(f"{identity} has no grant of its own: {grant}", hint=hint)
        return replace(identity, grants=tuple(g for g in identity.grants if g != grant))

    return change


def in_role(role: str) -> Change:
    """Give a user a role. Raises InvalidRequest, QuotaExceeded."""

    def change(identity: Identity) -> Identity:
        _check_user(identity, "roles")
        if role in identity.roles:
            return identity
        _check_room(identity, "roles", len(identity.roles), ROLES_MAX)
        return replace(identity, roles=tuple(sorted((*identity.roles, role))))

    return change


def without_role(role: str) -> Change:
    """Take a role from a user. Raises NotFound."""

    def change(identity: Identity) -> Identity:
        if role not in identity.roles:
            raise NotFound(f"{identity} has no role {role[:100]!r}")
        return replace(identity, roles=tuple(r for r in identity.roles if r != role))

    return change


def with_token(token: Token) -> Change:
    """Add a token. Raises InvalidRequest, QuotaExceeded."""
    if len(token.sha256) != HASH_BYTES:
        raise InvalidRequest(f"a hash of {len(token.sha256)} bytes", hint="the SHA-256 of the token's text")
    if len(token.label) > LABEL_CHARS_MAX:
        raise InvalidRequest(f"a label of {len(token.label)} characters", hint=f"at most {LABEL_CHARS_MAX}")

    def change(identity: Identity) -> Identity:
        _check_user(identity, "tokens")
        if any(each.sha256 == token.sha256 for each in identity.tokens):
            return identity
        _check_room(identity, "tokens", len(identity.tokens), TOKENS_MAX)
        return replace(identity, tokens=(*identity.tokens, token))

    return change


def without_token(token_id: str) -> Change:
    """Revoke a token by its id, or all of them by "*". Raises NotFound."""

    def change(identity: Identity) -> Identity:
        left = tuple(t for t in identity.tokens if token_id != "*" and t.id != token_id)
        if len(left) == len(identity.tokens) and token_id != "*":
            raise NotFound(
                f"{identity} has no token {token_id[:100]!r}", hint=f"list them: tinymq user list {identity.name}"
            )
        return replace(identity, tokens=left) if left != identity.tokens else identity

    return change


def _check_user(identity: Identity, what: str) -> None:
    if identity.is_role:
        raise InvalidRequest(f"{identity} has no {what}", hint="a role is a set of grants; users have roles and tokens")


def _check_room(identity: Identity, what: str, count: int, most: int) -> None:
    if count >= most:
        raise QuotaExceeded(f"{identity} has {count} {what} already", hint=f"at most {most}; use prefixes, or roles")
