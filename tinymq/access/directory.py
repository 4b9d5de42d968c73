"""The users, tokens and roles of the cluster, as of one version of the registry's records. Immutable; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from tinymq.access.identity import ACCESS, ROLE, SWITCH, USER, Identity, Token, parse_identity, parse_switch
from tinymq.access.quotas import QUOTA, parse_quota, user_of
from tinymq.base.errors import CorruptData, Denied
from tinymq.base.identity.grants import Grant, Rights
from tinymq.base.identity.quota import DEFAULT_NAME, NONE, Quota
from tinymq.registry.service import RegistryService


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller who has proven who it is."""

    name: str
    proof: str  # token, certificate, jwt; or forwarded: another broker of the cluster has checked it
    roles: tuple[str, ...] = ()  # beyond those that the registry has for the user
    expires_us: int = 0  # when the proof ends, wall time; 0: it does not
    sha256: bytes = field(default=b"", repr=False)  # of the token, by which a revocation is noticed
    key_id: str = ""  # of the issuer's key that signed a JWT: it counts as long as the key does


NOBODY = Principal("", "")


@dataclass(frozen=True, slots=True)
class Directory:
    """All users and roles."""

    enabled: bool = False  # callers are checked
    users: Mapping[str, Identity] = field(default_factory=dict)
    roles: Mapping[str, Identity] = field(default_factory=dict)
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    _by_token: Mapping[bytes, tuple[Identity, Token]] = field(default_factory=dict)
    _quotas: dict[str, Quota] = field(default_factory=dict)  # filled when they are asked for, as is the next one
    _rights: dict[tuple[str, tuple[str, ...]], Rights] = field(default_factory=dict)

    def holder(self, sha256: bytes) -> tuple[Identity, Token] | None:
        """The user who has the token of this hash."""
        return self._by_token.get(sha256)

    def grants_of(self, principal: Principal) -> list[tuple[Grant, str]]:
        """Every grant of a caller, with the role that it comes from; "": its own."""
        user = self.users.get(principal.name)
        own = [(grant, "") for grant in user.grants] if user is not None else []
        named = dict.fromkeys((*(user.roles if user is not None else ()), *principal.roles))
        roles = (self.roles[name] for name in named if name in self.roles)
        return own + [(grant, role.name) for role in roles for grant in role.grants]

    def rights_of(self, principal: Principal) -> Rights:
        """The rights of a caller."""
        key = principal.name, principal.roles
        rights = self._rights.get(key)
        if rights is None:
            rights = Rights(grant for grant, _ in self.grants_of(principal))
            if len(self._rights) >= RIGHTS_MAX:
                self._rights.clear()
            self._rights[key] = rights
        return rights

    def quota_of(self, name: str) -> Quota:
        """The quota of a user: its own bounds, and the bounds of every user where it has none. Administrators have
        their own bounds only, so that a bound for every user cannot keep them from lifting it."""
        known = self._quotas.get(name)
        if known is not None:
            return known
        own, default = self.quotas.get(name, NONE), self.quotas.get(DEFAULT_NAME, NONE)
        if not self.rights_of(Principal(name, "")).administers:
            own = own.over(default)
        if len(self._quotas) >= RIGHTS_MAX:
            self._quotas.clear()
        self._quotas[name] = own
        return own

    def administrators(self) -> list[str]:
        """The users who may do everything and have a token."""
        every = (user for user in self.users.values() if user.tokens)
        return sorted(user.name for user in every if self.rights_of(Principal(user.name, "")).administers)


RIGHTS_MAX = 10_000  # remembered callers


class DirectoryReader:
    """Makes directories of the registry's records. It parses each record once."""

    def __init__(self) -> None:
        self._parsed: dict[tuple[str, str], Identity] = {}

    def read(self, registry: RegistryService) -> Directory:
        """The directory of the present records. A record that does not parse belongs to nobody, and grants nothing."""
        users, roles = self._identities(registry, USER), self._identities(registry, ROLE)
        self._parsed = {(each.kind, each.name): each for each in (*users, *roles)}
        return make_directory(parse_switch(registry.get_record(ACCESS, SWITCH)), users, roles, read_quotas(registry))

    def _identities(self, registry: RegistryService, kind: str) -> list[Identity]:
        found = []
        for record in registry.get_all_records(kind):
            known = self._parsed.get((kind, record.name))
            try:
                found.append(known if known is not None and known.version == record.version else parse_identity(record))
            except CorruptData:
                continue
        return found


def read_quotas(registry: RegistryService) -> dict[str, Quota]:
    """The quotas of the present records, by user. One that does not parse bounds nothing."""
    found = {}
    for record in registry.get_all_records(QUOTA):
        with suppress(CorruptData):
            found[user_of(record)] = parse_quota(record)
    return found


def make_directory(
    enabled: bool, users: Iterable[Identity], roles: Iterable[Identity], quotas: Mapping[str, Quota] | None = None
) -> Directory:
    by_name = {user.name: user for user in users}
    by_token = {token.sha256: (user, token) for user in by_name.values() for token in user.tokens}
    return Directory(enabled, by_name, {role.name: role for role in roles}, quotas or {}, _by_token=by_token)


def denied(principal: Principal, operation: str, kind: str, name: str, shown: str) -> Denied:
    """The error of a caller without the grant. It names the operation, the resource, and the command that grants it."""
    what = "the cluster" if kind == "cluster" else f"{kind} {shown!r}"
    resource = "cluster" if kind == "cluster" else f"{kind}:{name if name == shown else 'NAME'}"
    included = " (read and write include it)" if operation == "describe" else ""
    return Denied(
        f"{principal.name!r} may not {operation} {what}",
        hint=f"an administrator can allow it: tinymq acl grant {principal.name} {operation} {resource}{included}",
        operation=operation,
        resource=resource,
    )
