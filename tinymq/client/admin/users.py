"""Users, tokens, roles and grants: what an administrator changes, and what a caller may ask about itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from tinymq.base.errors import InvalidConfig, InvalidRequest
from tinymq.base.identity.grants import Grant, parse_grant
from tinymq.base.identity.quota import NONE
from tinymq.base.identity.token import hash_token, make_token
from tinymq.base.types import check_consumer_name
from tinymq.base.value import value
from tinymq.client.admin.broker_calls import BrokerCalls
from tinymq.client.cluster.cluster import Cluster
from tinymq.proto import tinymq_pb2 as pb

LIFETIME_S_MAX = 100 * 365 * 86_400
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@value
class TokenDescription:
    """A description of a user's token. Only the holder has the token itself.

    for user in mq.access.list_users():
        for token in user.tokens:
            print(token.label, token.expires)
    """

    token_id: str
    label: str
    created: datetime
    expires: datetime | None  # None: never


@value
class UserDescription:
    """A user, or a role: a named set of grants that users share.

    for user in mq.access.list_users():
        print(user.name, user.roles, user.grants)
    """

    name: str
    is_role: bool
    grants: tuple[str, ...]  # the user's or role's own, such as "read topic:orders"; without those of its roles
    roles: tuple[str, ...]
    tokens: tuple[TokenDescription, ...]
    created: datetime


@value
class WhoAmI:
    """The caller, as a broker knows it.

    print(mq.access.who_am_i().name)
    """

    name: str  # of the user; "": the broker does not know the caller
    proof: str  # "token" or "certificate"; "": the caller gave no proof
    roles: tuple[str, ...]
    grants: tuple[str, ...]  # all grants, including those of the roles
    enabled: bool  # whether brokers check callers
    expires_s: float | None  # seconds until the proof expires; None: it never does


@value
class AccessAnswer:
    """Whether a user may do something, and why.

    answer = mq.access.test_access("anna", "read", "topic:orders")
    print(answer.allowed, answer.grant)
    """

    allowed: bool
    grant: str  # the grant that allows it; "": no grant does
    role: str  # through which the user has the grant; "": its own


@value
class QuotaDescription:
    """The quota of a user, bound by bound.

    for quota in mq.access.list_quotas():
        print(quota.user, quota.bounds)
    """

    user: str  # "*": every user, as far as a user has no bound of its own
    bounds: dict[str, int]  # by name, such as requests_per_s


class UserCalls:
    """The part of the admin that concerns users."""

    def __init__(self, cluster: Cluster, brokers: BrokerCalls) -> None:
        self._cluster = cluster
        self._brokers = brokers

    async def who_am_i(self, timeout_s: float) -> WhoAmI:
        reply = await self._cluster.ask(pb.WhoAmIRequest(), timeout_s=timeout_s)
        return WhoAmI(
            name=reply.name,
            proof=reply.proof,
            roles=tuple(reply.roles),
            grants=_texts(reply.grants),
            enabled=reply.enabled,
            expires_s=reply.left_ms / 1000 or None,
        )

    async def change(self, request: pb.ChangeUserRequest, timeout_s: float) -> bool:
        """Carry out a change. Returns whether anything was different before."""
        check_consumer_name(request.name)
        return bool((await self._brokers.change(request, timeout_s)).changed)

    async def create_token(self, user: str, label: str, lifetime_s: float | None, timeout_s: float) -> str:
        if lifetime_s is not None and not 0 < lifetime_s <= LIFETIME_S_MAX:
            raise InvalidConfig(f"lifetime={lifetime_s!r}", hint="seconds above 0, or None for no end")
        token = make_token()
        new = pb.NewToken(sha256=hash_token(token), label=label, lifetime_ms=int((lifetime_s or 0) * 1000))
        await self.change(pb.ChangeUserRequest(name=user, add_token=new), timeout_s)
        return token

    async def describe(self, name: str, timeout_s: float) -> list[UserDescription]:
        reply = await self._cluster.ask(pb.ListUsersRequest(name=name), timeout_s=timeout_s)
        return [_described(user) for user in reply.users]

    async def test(self, user: str, grant: Grant, timeout_s: float) -> AccessAnswer:
        if grant.prefix:
            raise InvalidRequest("a prefix is not one resource", hint="name one resource, such as topic:orders")
        request = pb.TestAccessRequest(user=user, wanted=to_wire(grant))
        reply = await self._cluster.ask(request, timeout_s=timeout_s)
        by = _texts([reply.by])[0] if reply.allowed else ""
        return AccessAnswer(reply.allowed, by, reply.role)

    async def change_quota(self, user: str, bounds: Mapping[str, int | None], timeout_s: float) -> QuotaDescription:
        NONE.changed(bounds)  # raises InvalidRequest
        parts = [pb.QuotaBound(name=name, value=bound) for name, bound in bounds.items()]
        reply = await self._brokers.change(pb.ChangeQuotaRequest(user=user, bounds=parts), timeout_s)
        return _quota(user, reply.quota)

    async def delete_quota(self, user: str, timeout_s: float) -> None:
        await self._brokers.change(pb.ChangeQuotaRequest(user=user, delete=True), timeout_s)

    async def quotas(self, user: str, timeout_s: float) -> list[QuotaDescription]:
        reply = await self._cluster.ask(pb.ListQuotasRequest(user=user), timeout_s=timeout_s)
        return [_quota(quota.user, quota) for quota in reply.quotas]

    async def switch(self, enabled: bool, timeout_s: float) -> list[str]:
        reply = await self._brokers.change(pb.SwitchAccessRequest(enabled=enabled), timeout_s)
        return list(reply.administrators)


def _quota(user: str, quota: pb.QuotaInfo) -> QuotaDescription:
    return QuotaDescription(user, {bound.name: bound.value for bound in quota.bounds})


def to_wire(grant: Grant) -> pb.AccessGrant:
    return pb.AccessGrant(operation=grant.operation, kind=grant.kind, name=grant.name, prefix=grant.prefix)


def grant_of(operation: str, resource: str) -> pb.AccessGrant:
    """Raises InvalidRequest for an operation or a kind of resource that does not exist."""
    return to_wire(parse_grant(operation, resource))


def _texts(grants: Iterable[pb.AccessGrant]) -> tuple[str, ...]:
    """Grants as people read them. A grant that only a newer build knows is shown, too."""
    return tuple(
        f"{g.operation} {g.kind}" + ("" if g.kind == "cluster" else f":{g.name}{'*' if g.prefix else ''}")
        for g in grants
    )


def _described(user: pb.UserInfo) -> UserDescription:
    return UserDescription(
        name=user.name,
        is_role=user.role,
        grants=_texts(user.grants),
        roles=tuple(user.roles),
        tokens=tuple(
            TokenDescription(t.id, t.label, _time(t.created_us), _time(t.expires_us) if t.expires_us else None)
            for t in user.tokens
        ),
        created=_time(user.created_us),
    )


def _time(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)
