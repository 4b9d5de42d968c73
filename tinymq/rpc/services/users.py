"""service Users: users, roles and grants, and whether callers are checked. The registry keeps them, so any broker
answers.

This service identifies its callers also while the cluster does not check them. Only administrators change users; the
cluster's secret makes the first administrator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tinymq.access.caller import Caller
from tinymq.access.directory import NOBODY, Directory, Principal
from tinymq.access.identity import (
    ACCESS,
    SWITCH,
    USER,
    Change,
    Identity,
    Token,
    check_unmade,
    granted,
    in_role,
    new_identity,
    pack_switch,
    revoked,
    with_token,
    without_role,
    without_token,
)
from tinymq.access.quotas import QUOTA, pack_quota, parse_quota, record_name
from tinymq.base.errors import Denied, InvalidRequest, NotFound, Unauthenticated, VersionConflict
from tinymq.base.identity.grants import ADMINISTRATOR, Grant, Rights, parse_grant
from tinymq.base.identity.quota import NONE, Quota
from tinymq.base.types import check_consumer_name
from tinymq.broker.replicas.recovery import Recovery
from tinymq.broker.serve.broker import Broker
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.rpc.common.access import CLUSTER
from tinymq.rpc.common.broker_state import Serving
from tinymq.rpc.common.call_context import Context
from tinymq.rpc.common.caller import credential_of
from tinymq.rpc.common.proof import administrator_proof, check_proof
from tinymq.rpc.common.rpc_method import unary

TIMEOUT_S = 10.0  # if the client gives none
TIMEOUT_S_MAX = 600.0
ATTEMPTS = 5  # of a change, while others change the same user


class UsersService(pb_grpc.UsersServicer):
    """service Users."""

    def __init__(self, serving: Serving, recovery: Recovery, secret: bytes) -> None:
        self._serving = serving
        self._gate = serving.gate
        self._recovery = recovery
        self._secret = secret

    @unary(operation="switch", resource=CLUSTER)
    async def WhoAmI(self, request: pb.WhoAmIRequest, context: Context) -> pb.WhoAmIReply:
        self._serving.running()
        caller = self._gate.identify(credential_of(context))
        self._gate.check_known(caller, "Users.WhoAmI")
        principal, directory = caller.principal, self._gate.directory
        user = directory.users.get(principal.name)
        roles = dict.fromkeys((*(user.roles if user is not None else ()), *principal.roles))
        left_us = principal.expires_us - self._gate.now_us() if principal.expires_us else 0
        return pb.WhoAmIReply(
            name=principal.name,
            proof=principal.proof,
            roles=roles,
            grants=[_to_wire(grant) for grant in dict.fromkeys(g for g, _ in directory.grants_of(principal))],
            enabled=self._gate.on,
            left_ms=max(0, left_us // 1000),
        )

    @unary(operation="switch", resource=CLUSTER)
    async def ListUsers(self, request: pb.ListUsersRequest, context: Context) -> pb.ListUsersReply:
        broker = self._serving.running()
        await broker.refresh()
        self._administrator(context, "Users.ListUsers")
        directory = self._gate.directory
        every = [*directory.users.values(), *directory.roles.values()]
        found = [each for each in every if request.name in ("", each.name)]
        if request.name and not found:
            raise NotFound(f"no user or role {request.name[:300]!r}")
        return pb.ListUsersReply(users=map(_user_to_wire, found), enabled=self._gate.on)

    @unary(operation="switch", resource=CLUSTER)
    async def TestAccess(self, request: pb.TestAccessRequest, context: Context) -> pb.TestAccessReply:
        broker = self._serving.running()
        await broker.refresh()
        self._administrator(context, "Users.TestAccess")
        wanted, directory = _grant(request.wanted), self._gate.directory
        if request.user not in directory.users:
            raise NotFound(f"no user {request.user[:300]!r}")
        for grant, role in directory.grants_of(Principal(request.user, "")):
            if Rights([grant]).allow(wanted.operation, wanted.kind, wanted.name):
                return pb.TestAccessReply(allowed=True, by=_to_wire(grant), role=role)
        return pb.TestAccessReply(allowed=False)

    @unary(operation="switch", resource=CLUSTER)
    async def ChangeUser(self, request: pb.ChangeUserRequest, context: Context) -> pb.ChangeUserReply:
        broker = self._serving.running()
        await broker.refresh()
        caller = self._administrator(context, "Users.ChangeUser")
        check_consumer_name(request.name)
        what = request.WhichOneof("change")
        if what is None:
            raise InvalidRequest("a change of nothing", hint="it comes from a newer client")
        reply = await self._change(broker, request, what)
        self._gate.note_change(caller, "Users.ChangeUser", _described(request, what))
        return reply

    @unary(operation="switch", resource=CLUSTER)
    async def SwitchAccess(self, request: pb.SwitchAccessRequest, context: Context) -> pb.SwitchAccessReply:
        """Only an administrator who proves who it is in this very call switches the checks: nobody is shut out."""
        broker = self._serving.running()
        await broker.refresh()
        caller = self._administrator(context, "Users.SwitchAccess")
        record = broker.registry.get_record(ACCESS, SWITCH)
        value = pack_switch(request.enabled, caller.principal.name)
        version = record.version if record is not None else 0
        if record is None or record.value != value:
            await broker.registry.put_record(
                ACCESS, SWITCH, value, version, _timeout_s(request.timeout_ms), request.command_id
            )  # fmt: skip
        self._gate.note_change(caller, "Users.SwitchAccess", "enable" if request.enabled else "disable")
        return pb.SwitchAccessReply(administrators=self._gate.directory.administrators())

    @unary(operation="switch", resource=CLUSTER)
    async def ListQuotas(self, request: pb.ListQuotasRequest, context: Context) -> pb.ListQuotasReply:
        broker = self._serving.running()
        await broker.refresh()
        self._administrator(context, "Users.ListQuotas")
        quotas = sorted(self._gate.directory.quotas.items())
        found = [(user, quota) for user, quota in quotas if request.user in ("", user)]
        if request.user and not found:
            raise NotFound(f"{request.user[:300]!r} has no quota", hint="tinymq quota set makes one")
        return pb.ListQuotasReply(quotas=[_quota_to_wire(user, quota) for user, quota in found])

    @unary(operation="switch", resource=CLUSTER)
    async def ChangeQuota(self, request: pb.ChangeQuotaRequest, context: Context) -> pb.ChangeQuotaReply:
        broker = self._serving.running()
        await broker.refresh()
        caller = self._administrator(context, "Users.ChangeQuota")
        name, timeout_s = record_name(request.user), _timeout_s(request.timeout_ms)
        changes = {bound.name: bound.value if bound.HasField("value") else None for bound in request.bounds}
        if not changes and not request.delete:
            raise InvalidRequest("a change of nothing", hint="name a bound, such as requests_per_s")
        for attempt in range(ATTEMPTS):
            record = broker.registry.get_record(QUOTA, name)
            before, version = (parse_quota(record), record.version) if record is not None else (NONE, 0)
            after = NONE if request.delete else before.changed(changes)
            if request.delete and record is None:
                raise NotFound(f"{request.user!r} has no quota")
            try:
                if after == NONE and record is not None:
                    await broker.registry.remove_record(QUOTA, name, version, timeout_s, request.command_id)
                elif after != before:
                    value = pack_quota(after)
                    await broker.registry.put_record(QUOTA, name, value, version, timeout_s, request.command_id)
                break
            except VersionConflict:
                if attempt == ATTEMPTS - 1:
                    raise
                await broker.refresh()
        bounds = ", ".join(f"{bound}={value}" for bound, value in after.bounds().items()) or "none"
        self._gate.note_change(caller, "Users.ChangeQuota", f"quota of {request.user}: {bounds}")
        return pb.ChangeQuotaReply(quota=None if after == NONE else _quota_to_wire(request.user, after))

    @unary(operation="secret", resource=CLUSTER)
    async def MakeAdministrator(
        self, request: pb.MakeAdministratorRequest, context: Context
    ) -> pb.MakeAdministratorReply:  # fmt: skip
        expected = administrator_proof(self._secret, request.challenge, request.token_sha256, request.name)
        check_proof(request.proof, expected)
        self._recovery.spend(request.challenge)
        broker = self._serving.running()
        await broker.refresh()
        token = Token(request.token_sha256, "made with the cluster's secret", self._gate.now_us())
        changes = [granted(ADMINISTRATOR), with_token(token)]
        timeout_s = _timeout_s(request.timeout_ms)
        user = await self._store(broker, request.name, False, _all(changes), timeout_s, makes=True)
        origin = credential_of(context)
        maker = Caller(Principal("", "secret"), origin.host, origin.client)
        self._gate.note_change(maker, "Users.MakeAdministrator", f"administrator {user.name} token {token.id}")
        return pb.MakeAdministratorReply(user=_user_to_wire(user))

    # ---- deciding ---------------------------------------------------------------------------------------------

    def _administrator(self, context: Context, call: str) -> Caller:
        """Return the caller, who administers the cluster. Raises Unauthenticated, Denied."""
        caller = self._gate.identify(credential_of(context))
        if self._gate.on:
            self._gate.require(caller, call, "admin", "cluster")
        elif caller.principal is NOBODY:
            hint = "the first one is made with the cluster's secret: tinymq auth administrator NAME --secret-file FILE"
            raise Unauthenticated("only an administrator manages users, and the call shows no token", hint=hint)
        elif not self._gate.directory.rights_of(caller.principal).administers:
            raise Denied(f"{caller.principal.name!r} is no administrator of the cluster")
        return caller

    async def _change(self, broker: Broker, request: pb.ChangeUserRequest, what: str) -> pb.ChangeUserReply:
        name, timeout_s = request.name, _timeout_s(request.timeout_ms)
        directory = self._gate.directory
        present = (directory.roles if request.role else directory.users).get(name)
        if what == "delete":
            await self._delete(broker, present, request, timeout_s)
            return pb.ChangeUserReply(changed=True)
        if what == "create":
            user = await self._create(broker, present, request, timeout_s)
            return pb.ChangeUserReply(user=_user_to_wire(user), changed=True)
        if what == "add_role" and request.add_role not in directory.roles:
            raise NotFound(f"no role {request.add_role[:300]!r}", hint="make it: tinymq user create NAME --role")
        change = _change_of(request, what, self._gate.now_us())
        user = await self._store(broker, name, request.role, change, timeout_s, makes=False)
        return pb.ChangeUserReply(user=_user_to_wire(user), changed=present is None or user.version != present.version)

    async def _create(
        self, broker: Broker, present: Identity | None, request: pb.ChangeUserRequest, timeout_s: float
    ) -> Identity:  # fmt: skip
        new = new_identity(
            request.name, is_role=request.role, now_us=self._gate.now_us(), command_id=request.command_id
        )  # fmt: skip
        if present is not None:
            check_unmade(present, request.command_id)
            return present
        await broker.registry.put_record(new.kind, new.name, new.pack(), 0, timeout_s)
        return new

    async def _delete(
        self, broker: Broker, present: Identity | None, request: pb.ChangeUserRequest, timeout_s: float
    ) -> None:  # fmt: skip
        if present is None:
            raise NotFound(f"no {'role' if request.role else 'user'} {request.name[:300]!r}")
        self._check_somebody_stays(present, None)
        await broker.registry.remove_record(
            present.kind, present.name, present.version, timeout_s, request.command_id
        )  # fmt: skip

    async def _store(
        self, broker: Broker, name: str, is_role: bool, change: Change, timeout_s: float, *, makes: bool
    ) -> Identity:  # fmt: skip
        """Change a user or a role, again if another call changed it meanwhile. `makes`: if there is none, make it."""
        for attempt in range(ATTEMPTS):
            directory = self._gate.directory
            present = (directory.roles if is_role else directory.users).get(name)
            if present is None and not makes:
                raise NotFound(f"no {'role' if is_role else 'user'} {name[:300]!r}")
            before = present or new_identity(name, is_role=is_role, now_us=self._gate.now_us())
            after = change(before)
            if after is before:
                return before
            self._check_somebody_stays(present, after)
            try:
                record = await broker.registry.put_record(before.kind, name, after.pack(), before.version, timeout_s)
            except VersionConflict:
                if attempt == ATTEMPTS - 1:
                    raise
                await broker.refresh()
            else:
                return replace(after, version=record.version)
        raise AssertionError("every attempt returns or raises")

    def _check_somebody_stays(self, before: Identity | None, after: Identity | None) -> None:
        """Raises Denied if nobody could administer the cluster any more, while callers are checked."""
        directory = self._gate.directory
        if not self._gate.on or before is None:
            return
        users, roles = dict(directory.users), dict(directory.roles)
        table = roles if before.is_role else users
        if after is None:
            del table[before.name]
        else:
            table[before.name] = after
        if directory.administrators() and not Directory(True, users, roles).administrators():
            hint = "make another administrator first, or: tinymq auth disable"
            raise Denied(f"{before} is what the last administrator is by: nobody could undo this", hint=hint)


def _all(changes: list[Change]) -> Change:
    def change(identity: Identity) -> Identity:
        for each in changes:
            identity = each(identity)
        return identity

    return change


def _change_of(request: pb.ChangeUserRequest, what: str, now_us: int) -> Change:
    """The change of a user or a role that stays. Raises InvalidRequest."""
    new = request.add_token
    changes: dict[str, Callable[[], Change]] = {
        "add_token": lambda: with_token(
            Token(new.sha256, new.label, now_us, now_us + new.lifetime_ms * 1000 if new.lifetime_ms else 0)
        ),
        "revoke_token": lambda: without_token(request.revoke_token),
        "grant": lambda: granted(_grant(request.grant)),
        "revoke": lambda: revoked(_grant(request.revoke)),
        "add_role": lambda: in_role(request.add_role),
        "remove_role": lambda: without_role(request.remove_role),
    }
    return changes[what]()


def _described(request: pb.ChangeUserRequest, what: str) -> str:
    """The change as the audit log names it. A token is named by its id."""
    whom = f"{'role' if request.role else USER} {request.name}"
    detail = {
        "add_token": lambda: f"token {Token(request.add_token.sha256).id}",
        "revoke_token": lambda: f"token {request.revoke_token}",
        "grant": lambda: str(_grant(request.grant)),
        "revoke": lambda: str(_grant(request.revoke)),
        "add_role": lambda: request.add_role,
        "remove_role": lambda: request.remove_role,
    }.get(what)
    return f"{what} {whom}" if detail is None else f"{what} {whom}: {detail()}"


def _grant(wire: pb.AccessGrant) -> Grant:
    """Raises InvalidRequest for a grant that this build does not know."""
    resource = wire.kind if wire.kind == "cluster" else f"{wire.kind}:{wire.name}{'*' if wire.prefix else ''}"
    return parse_grant(wire.operation, resource)


def _to_wire(grant: Grant) -> pb.AccessGrant:
    return pb.AccessGrant(operation=grant.operation, kind=grant.kind, name=grant.name, prefix=grant.prefix)


def _quota_to_wire(user: str, quota: Quota) -> pb.QuotaInfo:
    bounds = [pb.QuotaBound(name=name, value=value) for name, value in quota.bounds().items()]
    return pb.QuotaInfo(user=user, bounds=bounds)


def _user_to_wire(user: Identity) -> pb.UserInfo:
    return pb.UserInfo(
        name=user.name,
        role=user.is_role,
        grants=map(_to_wire, user.grants),
        roles=user.roles,
        tokens=[
            pb.TokenInfo(id=t.id, label=t.label, created_us=t.created_us, expires_us=t.expires_us) for t in user.tokens
        ],
        created_us=user.created_us,
    )


def _timeout_s(timeout_ms: int) -> float:
    return min(timeout_ms / 1000 or TIMEOUT_S, TIMEOUT_S_MAX)
