"""`tinymq group`: make, list, describe, alter, move and delete consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from tinymq.base.errors import InvalidRequest
from tinymq.base.group_config import SETTINGS
from tinymq.base.quantity import quantity
from tinymq.base.types import Offset
from tinymq.cli.common.offsets import Last, parse_start
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_table, say
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions
from tinymq.cli.verbs.topic import DryRun

if TYPE_CHECKING:
    from tinymq.client import Client, GroupCursor, GroupDescription, GroupMember, GroupObstacle
    from tinymq.client.common.start_positions import Place

HELP = """
Example: tinymq group create mailer emails --kind queue --set lease_ms=60000

Example: tinymq group describe mailer

Example: tinymq group seek billing --to earliest --dry-run
"""

app = App(
    name="group",
    help="Make, list, describe, alter, move and delete consumer groups. A group divides its topics among its members.",
    help_epilogue=HELP,
)

Name = Annotated[str, Parameter(help="The group's name.")]
SET = "A setting, NAME=VALUE; may be repeated. " + " ".join(
    f"Of a {kind.value} group: {', '.join(declared)}." for kind, declared in SETTINGS.items()
)
TO = "start, end, a number, or @time (ISO 8601, seconds)."


@app.command
def create(
    name: Name,
    topics: Annotated[list[str], Parameter(help="Topics, and patterns such as 'orders-*'.")],
    /,
    *,
    kind: Annotated[
        Literal["stream", "queue"], Parameter(help="stream divides partitions, queue leases records.")
    ] = "stream",
    start: Annotated[str, Parameter(help="start, end or @time: where it begins in the partitions of now.")] = "start",
    set_: Annotated[list[str] | None, Parameter(name="--set", help=SET)] = None,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Make a group. When this returns, it has a cursor in every partition of its topics.

    Example: tinymq group create mailer emails --kind queue --set retry_ms=10000,60000 --set ordering=key
    """
    settings = dict(setting_of(text) for text in set_ or [])
    with servers.connect() as mq:
        made = mq.admin.create_group(name, topics, kind=kind, start=place_of(start), settings=settings)
    _show(made, output)


@app.command(name="list")
def list_(*, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """List the consumer groups."""
    with servers.connect() as mq:
        found = mq.admin.list_groups()
    if output == "json":
        print_json({"groups": [_document(group) for group in found]})
        return
    print_table(["group", "kind", "state", "topics"], [(g.name, g.kind, g.state, ", ".join(g.topics)) for g in found])


@app.command
def describe(name: Name, /, *, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """Show a group: its topics, its settings, and how far it is in each partition."""
    with servers.connect() as mq:
        group, cursors = mq.admin.describe_group(name), mq.admin.group_lag(name)
    if output == "json":
        print_json({**_document(group), "partitions": [_cursor_document(cursor) for cursor in cursors]})
        return
    _show(group, output)
    _print_cursors(cursors)
    if group.kind == "queue":
        rows = [(c.topic, c.partition, c.workers, c.leased, c.staged, c.waiting, c.burying) for c in cursors]
        print_table(["topic", "partition", "workers", "leased", "staged", "waiting", "burying"], rows)
    blocked = [(c.topic, c.partition, each.by, each.reason + _culprit(each)) for c in cursors for each in c.blocked]
    if blocked:
        print_table(["topic", "partition", "blocked", "because"], blocked)


@app.command
def members(name: Name, /, *, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """Show the members of a stream group, and which partitions each of them has."""
    with servers.connect() as mq:
        found = mq.admin.group_members(name)
    if output == "json":
        print_json({"group": name, "members": [_member_document(member) for member in found]})
        return
    rows = []
    for member in found:
        had = [f"{p.topic}/{p.partition}{' (leaving)' if p.revoking else ''}" for p in member.partitions]
        rows.append((member.member, member.client_id, "yes" if member.static else "no", ", ".join(had)))
    print_table(["member", "client", "static", "partitions"], rows)


@app.command
def lag(name: Name, /, *, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """Show how many records a group has still to read, in each partition and in all."""
    with servers.connect() as mq:
        cursors = mq.admin.group_lag(name)
    total = sum(cursor.lag for cursor in cursors)
    if output == "json":
        print_json({"group": name, "lag": total, "partitions": [_cursor_document(cursor) for cursor in cursors]})
        return
    _print_cursors(cursors)
    say(f"lag of group {name}: {total}")


@app.command
def seek(
    name: Name,
    /,
    *,
    to: Annotated[str, Parameter(allow_leading_hyphen=True, help=TO)],
    topic: Annotated[str | None, Parameter(help="Only this topic.")] = None,
    partition: Annotated[
        list[int] | None, Parameter(name=["--partition", "-p"], help="Only these partitions; may be repeated.")
    ] = None,
    dry_run: DryRun = False,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Move a group, in all of its partitions or in some. Its members read on from there."""
    place = place_of(to)
    with servers.connect() as mq:
        before = [
            cursor
            for cursor in mq.admin.group_lag(name)
            if topic in (None, cursor.topic) and (not partition or cursor.partition in partition)
        ]
        if dry_run:
            after = {(c.topic, c.partition): _target(mq, c, place) for c in before}
        else:
            moved = mq.admin.seek_group(name, place, topic=topic, partitions=partition)
            after = {(c.topic, c.partition): c.position for c in moved}
    rows = [(c.topic, c.partition, c.position, after.get((c.topic, c.partition), c.position)) for c in before]
    if output == "json":
        documents = [dict(zip(("topic", "partition", "from", "to"), row, strict=True)) for row in rows]
        print_json({"group": name, "dry_run": dry_run, "partitions": documents})
        return
    say(f"group {name} {'would move' if dry_run else 'moved'}")
    print_table(["topic", "partition", "from", "to"], rows)


@app.command
def alter(
    name: Name,
    /,
    *,
    set_: Annotated[list[str], Parameter(name="--set", help="A setting, NAME=VALUE; may be repeated.")],
    dry_run: DryRun = False,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Change settings of a group. Settings that concern leased records change only while no record is leased."""
    with servers.connect() as mq:
        before = mq.admin.describe_group(name)
        after = mq.admin.alter_group(name, dict(map(setting_of, set_)), dry_run=dry_run)
    rows = [(key, before.settings.get(key), value) for key, value in after.settings.items()]
    changed = [row for row in rows if row[1] != row[2]]
    if output == "json":
        documents = [dict(zip(("setting", "from", "to"), row, strict=True)) for row in changed]
        print_json({"group": name, "dry_run": dry_run, "changed": documents})
        return
    say(f"group {name} {'would change' if dry_run else 'changed'}")
    print_table(["setting", "from", "to"], changed)


@app.command
def pause(name: Name, /, *, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """Stop granting records to a queue group's workers. They may still settle the records that they have."""
    with servers.connect() as mq:
        _say_paused(mq.admin.pause_group(name), output)


@app.command
def resume(name: Name, /, *, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """End the pause of a queue group."""
    with servers.connect() as mq:
        _say_paused(mq.admin.resume_group(name), output)


@app.command
def purge(
    name: Name, /, *, dry_run: DryRun = False, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table"
) -> None:
    """Settle all records of a queue group that are there now, without delivering them. The records stay."""
    with servers.connect() as mq:
        count = mq.admin.purge_group(name, dry_run=dry_run)
    if output == "json":
        print_json({"group": name, "dry_run": dry_run, "records": count})
    else:
        say(f"{quantity(count, 'record')} of group {name} {'would be' if dry_run else 'are'} settled")


@app.command
def delete(
    name: Name, /, *, dry_run: DryRun = False, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table"
) -> None:
    """Delete a group with its cursors. The records stay. A group that is made again begins as a new one."""
    burials = 0
    with servers.connect() as mq:
        if dry_run:
            mq.admin.describe_group(name)
        else:
            burials = mq.admin.delete_group(name)
    if output == "json":
        print_json({"group": name, "deleted": not dry_run, "burials_ended": burials})
    else:
        ended = f"; {quantity(burials, 'record')} on the way to the dead letters stay in the topic" if burials else ""
        say(f"group {name} {'would be deleted' if dry_run else 'deleted'}{ended}")


def _state(group: GroupDescription) -> str:
    return f"{group.state}, paused" if group.paused else group.state


def place_of(text: str) -> Place:
    """Where a group begins. Raises InvalidRequest."""
    place = parse_start(text)
    if isinstance(place, Last):
        raise InvalidRequest(f"{text} is no place of a group", hint="say start, end, a number or @time")
    return place


def setting_of(text: str) -> tuple[str, str]:
    """NAME=VALUE in two parts. Raises InvalidRequest."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequest(f"{text!r} is no setting", hint="write NAME=VALUE")
    return name, value


def _target(mq: Client, cursor: GroupCursor, place: Place) -> int:
    """Where a seek would move a cursor, as of now."""
    if isinstance(place, Offset):
        return place.value
    return mq.admin.find_offsets(cursor.topic, place)[cursor.partition]


def _say_paused(group: GroupDescription, output: Output) -> None:
    if output == "json":
        print_json({"group": group.name, "paused": group.paused})
    else:
        say(f"group {group.name} {'is paused' if group.paused else 'goes on'}")


def _show(group: GroupDescription, output: Output) -> None:
    if output == "json":
        print_json(_document(group))
        return
    say(f"group {group.name}: {group.kind}, {_state(group)}, reads {', '.join(group.topics)}")
    if group.settings:
        print_table(["setting", "value"], list(group.settings.items()))


def _culprit(obstacle: GroupObstacle) -> str:
    """The record that holds others back, if it is known; its key as a Python literal."""
    if obstacle.offset is None:
        return ""
    key = f" of key {obstacle.key!r}" if obstacle.key is not None else ""
    return f"; first of all, the record{key} at offset {obstacle.offset}"


def _print_cursors(cursors: list[GroupCursor]) -> None:
    rows = [
        (c.topic, c.partition, c.position, c.lag, c.oldest_ms / 1000, c.moved.isoformat() if c.moved else None)
        for c in cursors
    ]
    print_table(["topic", "partition", "position", "lag", "oldest, s", "moved"], rows)


def _document(group: GroupDescription) -> dict[str, Any]:
    return {
        "group": group.name,
        "kind": group.kind,
        "state": group.state,
        "paused": group.paused,
        "topics": list(group.topics),
        "settings": dict(group.settings),
    }


def _member_document(member: GroupMember) -> dict[str, Any]:
    return {
        "member": member.member,
        "client_id": member.client_id,
        "static": member.static,
        "rack": member.rack,
        "partitions": [
            {"topic": each.topic, "partition": each.partition, "epoch": each.epoch, "revoking": each.revoking}
            for each in member.partitions
        ],
    }


def _cursor_document(cursor: GroupCursor) -> dict[str, Any]:
    return {
        "topic": cursor.topic,
        "partition": cursor.partition,
        "position": cursor.position,
        "lag": cursor.lag,
        "moved": cursor.moved.isoformat() if cursor.moved else None,
        "oldest_ms": cursor.oldest_ms,
        "leased": cursor.leased,
        "staged": cursor.staged,
        "waiting": cursor.waiting,
        "burying": cursor.burying,
        "workers": cursor.workers,
        "blocked": [
            {
                "by": each.by,
                "reason": each.reason,
                "offset": each.offset,
                "key": each.key.decode("utf-8", "backslashreplace") if each.key is not None else None,
            }
            for each in cursor.blocked
        ],
    }
