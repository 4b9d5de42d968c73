"""AsyncAccess: who may do what. All but `who_am_i` are for administrators of the cluster."""

from __future__ import annotations

from typing import TypedDict, Unpack

from tinymq.base.identity.grants import parse_grant
from tinymq.client.admin.broker_calls import BrokerCalls
from tinymq.client.admin.users import AccessAnswer, QuotaDescription, UserCalls, UserDescription, WhoAmI, grant_of
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.common import argument_checks as checks
from tinymq.proto import tinymq_pb2 as pb


class QuotaBounds(TypedDict, total=False):
    """The bounds of a quota by name (docs/security.md); None removes one.

    bounds: QuotaBounds = {"requests_per_s": 100, "topics": None}
    """

    produce_bytes_per_s: int | None
    fetch_bytes_per_s: int | None
    requests_per_s: int | None
    connections: int | None
    topics: int | None
    partitions: int | None
    groups: int | None
    producer_ids_per_h: int | None


class AsyncAccess:
    """The users of a cluster, and what each one may do: `mq.access`. All but `who_am_i` are an administrator's.

        await mq.access.create_user("etl")
        await mq.access.grant("etl", "write", "topic:orders.*")
        token = await mq.access.create_token("etl", label="nightly", lifetime=86_400.0)

    `timeout`: seconds, the deadline of a call with all its attempts; request_timeout_ms if not given. Changes are
    durable when they return. Brokers apply them within moments, and at the latest after 5 s; a broker that cannot ask
    the registry serves nobody after 30 s. Each call may raise BrokerUnreachable, DeadlineExceeded and, if it changes
    something, OutcomeUnknown.

    Roles, a user's rights, and how to take them back:

        access = mq.access
        await access.create_user("reader", role=True)
        await access.grant("reader", "read", "topic:orders*", role=True)
        await access.create_user("bert")
        print(await access.add_role("bert", "reader"), [user.name for user in await access.list_users()])
        print((await access.test_access("bert", "read", "topic:orders.eu")).allowed, (await access.who_am_i()).name)
        await access.set_quota("bert", requests_per_s=100)
        print(await access.list_quotas("bert"))
        await access.delete_quota("bert")
        await access.remove_role("bert", "reader")
        await access.revoke("reader", "read", "topic:orders*", role=True)
        await access.revoke_token("etl")
        for name in ("bert", "etl"):
            await access.delete_user(name)
        await access.delete_user("reader", role=True)
        print(await access.switch(False), "may administrate")
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._users = UserCalls(cluster, BrokerCalls(cluster))

    async def who_am_i(self, *, timeout: float | None = None) -> WhoAmI:
        """Return this client, as a broker knows it.

        Raises Unauthenticated if brokers check callers and this client shows no valid token or certificate.
        """
        return await self._users.who_am_i(self._timeout_s(timeout))

    async def list_users(self, name: str = "", *, timeout: float | None = None) -> list[UserDescription]:
        """Return all users and roles, or those of one name. Raises NotFound, Denied."""
        return await self._users.describe(name, self._timeout_s(timeout))

    async def create_user(self, name: str, *, role: bool = False, timeout: float | None = None) -> None:
        """Make a user, who may do nothing yet; with `role` a role. Raises InvalidName, AlreadyExists, Denied."""
        await self._users.change(pb.ChangeUserRequest(name=name, role=role, create=True), self._timeout_s(timeout))

    async def delete_user(self, name: str, *, role: bool = False, timeout: float | None = None) -> None:
        """Delete a user with all its tokens and grants, or a role. Raises NotFound, Denied, OutcomeUnknown."""
        await self._users.change(pb.ChangeUserRequest(name=name, role=role, delete=True), self._timeout_s(timeout))

    async def create_token(
        self, user: str, *, label: str = "", lifetime: float | None = None, timeout: float | None = None
    ) -> str:
        """Make a token for a user, and return it. Nobody can read it again: brokers get its hash.

        `lifetime`: seconds until it expires; None: never. Raises NotFound, QuotaExceeded (64 to a user), Denied.
        """
        return await self._users.create_token(user, label, lifetime, self._timeout_s(timeout))

    async def revoke_token(self, user: str, token_id: str = "*", *, timeout: float | None = None) -> None:
        """Revoke the token `token_id` of a user, or all ("*"). Open streams end, too. Raises NotFound, Denied."""
        request = pb.ChangeUserRequest(name=user, revoke_token=token_id)
        await self._users.change(request, self._timeout_s(timeout))

    async def grant(
        self, name: str, operation: str, resource: str, *, role: bool = False, timeout: float | None = None
    ) -> bool:
        """Let a user or a role do something: grant("etl", "write", "topic:orders.*"). False: it might already.

        operation: read, write, create, alter, delete, describe, admin. resource: topic:NAME, group:NAME, channel:NAME,
        transactional_id:NAME, producer_group:NAME, cluster; NAME* stands for all names that begin so. Raises
        InvalidRequest, NotFound, QuotaExceeded, Denied.
        """
        request = pb.ChangeUserRequest(name=name, role=role, grant=grant_of(operation, resource))
        return await self._users.change(request, self._timeout_s(timeout))

    async def revoke(
        self, name: str, operation: str, resource: str, *, role: bool = False, timeout: float | None = None
    ) -> None:
        """Take a grant back. `operation` and `resource` are those of the grant. Raises NotFound if there is none,
        InvalidRequest, Denied."""
        request = pb.ChangeUserRequest(name=name, role=role, revoke=grant_of(operation, resource))
        await self._users.change(request, self._timeout_s(timeout))

    async def add_role(self, user: str, role: str, *, timeout: float | None = None) -> bool:
        """Give a user a role. Returns False if the user has the role already. Raises NotFound, QuotaExceeded,
        Denied."""
        return await self._users.change(pb.ChangeUserRequest(name=user, add_role=role), self._timeout_s(timeout))

    async def remove_role(self, user: str, role: str, *, timeout: float | None = None) -> None:
        """Take a role from a user. Raises NotFound, Denied."""
        await self._users.change(pb.ChangeUserRequest(name=user, remove_role=role), self._timeout_s(timeout))

    async def test_access(
        self, user: str, operation: str, resource: str, *, timeout: float | None = None
    ) -> AccessAnswer:
        """Return whether a user may do `operation` on `resource` (see `grant`), and by which grant.

        Raises NotFound, InvalidRequest, Denied.
        """
        return await self._users.test(user, parse_grant(operation, resource), self._timeout_s(timeout))

    async def set_quota(
        self, user: str, *, timeout: float | None = None, **bounds: Unpack[QuotaBounds]
    ) -> QuotaDescription:
        """Set some bounds of a user, or of every user ("*") as far as a user has none of its own; None removes a bound.

            await mq.access.set_quota("etl", produce_bytes_per_s=10_000_000, topics=20)

        A rate holds for each broker, and all clients of the user share it; counts hold for the cluster. Other bounds
        stay. Returns the user's own bounds as they are now. Raises InvalidRequest, InvalidName, Denied.
        """
        return await self._users.change_quota(user, bounds, self._timeout_s(timeout))  # type: ignore[arg-type]

    async def delete_quota(self, user: str, *, timeout: float | None = None) -> None:
        """Remove all bounds of a user, or of every user ("*"). Raises NotFound, Denied."""
        await self._users.delete_quota(user, self._timeout_s(timeout))

    async def list_quotas(self, user: str = "", *, timeout: float | None = None) -> list[QuotaDescription]:
        """Return all quotas, or that of one user. Raises NotFound, Denied."""
        return await self._users.quotas(user, self._timeout_s(timeout))

    async def switch(self, enabled: bool, *, timeout: float | None = None) -> list[str]:
        """Switch the checks of callers on (`enabled`) or off, in the whole cluster, and return the administrators by
        name.

        Only an administrator can do so, and proves with this very call that its token works. Raises Unauthenticated,
        Denied, OutcomeUnknown.
        """
        return await self._users.switch(enabled, self._timeout_s(timeout))

    def _timeout_s(self, timeout: float | None) -> float:
        checks.check_wait(timeout, least_s=checks.WAIT_S_MIN)
        return self._cluster.config.request_timeout_ms / 1000 if timeout is None else timeout
