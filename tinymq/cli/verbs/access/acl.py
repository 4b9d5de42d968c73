"""`tinymq acl`: say what users and roles may do."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from tinymq.cli.common.exits import Exit
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_table, say
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions
from tinymq.cli.verbs.access.user import Role

HELP = """
What is not granted is denied. Operations: read, write, create, alter, delete, describe, admin. Resources: topic:NAME,
group:NAME, channel:NAME, transactional_id:NAME, producer_group:NAME, cluster; NAME* stands for all names that begin so.

Example: tinymq acl grant anna read 'topic:orders*'

Example: tinymq acl test anna read topic:orders
"""

app = App(name="acl", help="Say what users and roles may do: grant, revoke, list, test.", help_epilogue=HELP)
KINDS = {False: "user", True: "role"}
Who = Annotated[str, Parameter(help="The user, or with --role the role.")]
Operation = Annotated[str, Parameter(help="read, write, create, alter, delete, describe or admin.")]
Resource = Annotated[
    str,
    Parameter(
        help="topic:NAME, group:NAME, channel:NAME, transactional_id:NAME, producer_group:NAME or cluster; a * may end "
        "the name."
    ),
]


@app.command
def grant(
    who: Who, operation: Operation, resource: Resource, /, *, role: Role = False,
    servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table",
) -> None:  # fmt: skip
    """Let a user or a role do something."""
    with servers.connect() as mq:
        changed = mq.access.grant(who, operation, resource, role=role)
    say(f"{who} may {operation} {resource}" if changed else f"{who} might {operation} {resource} already")
    if output == "json":
        print_json({"who": who, "role": role, "operation": operation, "resource": resource, "changed": changed})


@app.command
def revoke(
    who: Who, operation: Operation, resource: Resource, /, *, role: Role = False,
    servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table",
) -> None:  # fmt: skip
    """Take a grant back, as it was given. Open streams lose it within 5 s, too."""
    with servers.connect() as mq:
        mq.access.revoke(who, operation, resource, role=role)
    say(f"the grant of {who} is revoked: {operation} {resource}")
    if output == "json":
        print_json({"who": who, "role": role, "operation": operation, "resource": resource, "revoked": True})


@app.command(name="list")
def list_(
    who: Annotated[str, Parameter(help="A user or a role. [default: all]")] = "",
    /,
    *,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """List grants, one in each line."""
    with servers.connect() as mq:
        users = mq.access.list_users(who)
    rows = [
        (user.name, "role" if user.is_role else "user", *each.split(" ", 1)) for user in users for each in user.grants
    ]
    if output == "json":
        print_json({"grants": [dict(zip(("who", "kind", "operation", "resource"), row, strict=True)) for row in rows]})
    else:
        print_table(["who", "kind", "operation", "resource"], rows)


@app.command(name="test")
def try_access(
    who: Annotated[str, Parameter(help="The user.")], operation: Operation, resource: Resource, /, *,
    servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table",
) -> int:  # fmt: skip
    """Say whether a user may do something, and by which grant. Exits with 4 if not."""
    with servers.connect() as mq:
        answer = mq.access.test_access(who, operation, resource)
    if output == "json":
        print_json({"allowed": answer.allowed, "grant": answer.grant or None, "role": answer.role or None})
    elif answer.allowed:
        say(f"allowed by: {answer.grant}{f' (role {answer.role})' if answer.role else ''}")
    else:
        say(f"denied: grant it with tinymq acl grant {who} {operation} {resource}")
    return Exit.OK if answer.allowed else Exit.DENIED
