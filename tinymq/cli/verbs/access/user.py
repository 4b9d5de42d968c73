"""`tinymq user`: make users and roles, and hand out and revoke tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tinymq.base.errors import InvalidRequest
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_table, say
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions
from tinymq.cli.common.units import parse_seconds
from tinymq.cli.verbs.access.new_token import check_free, hand_out

if TYPE_CHECKING:
    from tinymq.client import UserDescription

DAY_S = 86_400

HELP = """
A user may do what is granted: see `tinymq acl`. Only administrators manage users.

Example: tinymq user create anna

Example: tinymq user token anna --out anna.token
"""

app = App(
    name="user",
    help="Make users and roles, and hand out and revoke their tokens: list, create, token, revoke, add-role, "
    "remove-role, delete.",
    help_epilogue=HELP,
)
Name = Annotated[str, Parameter(help="The user's name.")]
Role = Annotated[bool, Parameter(negative="", help="A role of that name: a set of grants that users share.")]
Out = Annotated[Path | None, Parameter(help="Write the token to this new file, which only you may read.")]


@app.command(name="list")
def list_(name: str = "", /, *, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """List users and roles, or those of one name: their grants, roles and tokens."""
    with servers.connect() as mq:
        users = mq.access.list_users(name)
    if output == "json":
        print_json({"users": [_document(user) for user in users]})
        return
    rows = [
        (
            user.name, "role" if user.is_role else "user", ", ".join(user.roles), ", ".join(user.grants),
            ", ".join(f"{token.token_id}{f' ({token.label})' if token.label else ''}" for token in user.tokens),
        )
        for user in users
    ]  # fmt: skip
    print_table(["name", "kind", "roles", "grants", "tokens"], rows)


@app.command
def create(
    name: Name, /, *, role: Role = False, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table"
) -> None:
    """Make a user or a role, which may do nothing yet."""
    with servers.connect() as mq:
        mq.access.create_user(name, role=role)
    say(f"{'role' if role else 'user'} {name} made; let it do something: tinymq acl grant {name} read topic:NAME")
    if output == "json":
        print_json({"name": name, "role": role})


@app.command
def token(
    name: Name,
    /,
    *,
    label: Annotated[str, Parameter(help="What the token is for, to recognise it in lists.")] = "",
    lifetime: Annotated[str, Parameter(help="How long it is valid, such as 12h or 90d. [default: for ever]")] = "",
    out: Out = None,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Make a token for a user, and print it once. A program takes it from TINYMQ_TOKEN, or as token=…."""
    check_free(out)
    with servers.connect() as mq:
        made = mq.access.create_token(name, label=label, lifetime=_seconds(lifetime))
    hand_out(made, out, name, output)


@app.command
def revoke(
    name: Name,
    token_id: Annotated[str, Parameter(help="The token's id, as `tinymq user list` shows it.")] = "",
    /,
    *,
    all_: Annotated[bool, Parameter(name="--all", negative="", help="Revoke every token of the user.")] = False,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Revoke a token: within 5 s no broker serves it any more, open streams included."""
    if all_ == bool(token_id):
        raise InvalidRequest("which token?", hint="name one token id, or give --all")
    with servers.connect() as mq:
        mq.access.revoke_token(name, token_id or "*")
    say(f"{'all tokens' if all_ else f'token {token_id}'} of user {name} revoked")
    if output == "json":
        print_json({"name": name, "token": token_id or None, "revoked": True})


@app.command(name="add-role")
def add_role(
    name: Name, role: str, /, *, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table"
) -> None:  # fmt: skip
    """Give a user a role."""
    with servers.connect() as mq:
        changed = mq.access.add_role(name, role)
    say(f"user {name} has the role {role}" if changed else f"user {name} had the role {role} already")
    if output == "json":
        print_json({"name": name, "role": role, "changed": changed})


@app.command(name="remove-role")
def remove_role(
    name: Name, role: str, /, *, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table"
) -> None:  # fmt: skip
    """Take a role from a user."""
    with servers.connect() as mq:
        mq.access.remove_role(name, role)
    say(f"user {name} has no role {role} any more")
    if output == "json":
        print_json({"name": name, "role": role, "removed": True})


@app.command
def delete(
    name: Name, /, *, role: Role = False, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table"
) -> None:
    """Delete a user with its tokens and grants, or a role."""
    with servers.connect() as mq:
        mq.access.delete_user(name, role=role)
    say(f"{'role' if role else 'user'} {name} deleted")
    if output == "json":
        print_json({"name": name, "role": role, "deleted": True})


def _seconds(text: str) -> float | None:
    """Raises InvalidRequest."""
    if not text:
        return None
    if text.endswith("d") and text[:-1].isdigit() and len(text) < 7:
        return int(text[:-1]) * float(DAY_S)
    return parse_seconds(text)


def _document(user: UserDescription) -> dict[str, Any]:
    return {
        "name": user.name,
        "role": user.is_role,
        "roles": list(user.roles),
        "grants": list(user.grants),
        "tokens": [
            {
                "id": token.token_id,
                "label": token.label,
                "created": token.created.isoformat(),
                "expires": token.expires.isoformat() if token.expires is not None else None,
            }
            for token in user.tokens
        ],
        "created": user.created.isoformat(),
    }
