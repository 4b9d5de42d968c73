"""`tinymq half`: list and describe half messages, and decide about them in the place of their senders."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tinymq.base.errors import NotFound
from tinymq.cli.common.confirmation import confirm
from tinymq.cli.common.due import left
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_table, say
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions
from tinymq.cli.verbs.topic import DryRun, Yes

if TYPE_CHECKING:
    from tinymq.client import HalfMessageDescription

HELP = """
A program stores half messages, and commits them later: mq.half_message("orders", b"...", producer_group="checkout").

Example: tinymq half list

Example: tinymq half commit 1042-0-1
"""

app = App(name="half", help="Half messages: list, describe, commit, rollback.", help_epilogue=HELP)

Name = Annotated[str, Parameter(help="The half message, as `tinymq half list` shows it.")]
Group = Annotated[str | None, Parameter(help="Only those of this producer group.")]
STATES = {"open": "open", "committed": "committing", "aborted": "rolling back"}
CONTEXT_LENGTH_MAX = 40  # in the table


@app.command(name="list")
def list_(
    producer_group: Group = None, /, *, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table"
) -> None:
    """List the half messages that are not over, the oldest first.

    `open`: nobody has committed it or rolled it back. In `check in` a checker of its producer group is asked; `checks`
    were answered without an outcome, of 15; `checkers` programs answer for the group now. `committing` and `rolling
    back`: it is decided, and its partition has not carried that out yet.
    """
    with servers.connect() as mq:
        found = mq.admin.list_half_messages(producer_group)
    if output == "json":
        print_json({"half_messages": [_document(each) for each in found]})
        return
    rows = [
        (
            each.name, each.producer_group, f"{each.topic}/{each.partition}", STATES.get(each.state, each.state),
            _time(each.begun_at), _check_in(each), each.checks, each.checkers, _short(each.context),
        )
        for each in found
    ]  # fmt: skip
    columns = ["half message", "producer group", "partition", "state", "begun", "check in"]
    print_table([*columns, "checks", "checkers", "context"], rows)


@app.command
def describe(name: Name, /, *, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """Show one half message that is not over, with all of its context. If there is none, the exit code is 3."""
    with servers.connect() as mq:
        found = mq.admin.describe_half_message(name)
    if output == "json":
        print_json(_document(found))
        return
    rows = [
        ("half message", found.name),
        ("producer group", found.producer_group),
        ("partition", f"{found.topic}/{found.partition}"),
        ("state", STATES.get(found.state, found.state)),
        ("begun", _time(found.begun_at)),
        ("check in", _check_in(found)),
        ("checks", found.checks),
        ("checkers", found.checkers),
        ("context", _text(found.context)),
    ]
    print_table(["field", "value"], rows)


@app.command
def commit(
    name: Name, /, *, dry_run: DryRun = False, yes: Yes = False, servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:  # fmt: skip
    """Deliver a half message, in the place of its sender. It cannot be undone.

    Look first whether the sender's own transaction is committed: `tinymq half describe` shows the context that the
    sender gave with it. If no such half message is open, nothing changes, and the exit code is 3.
    """
    _end(name, True, dry_run, yes, servers, output)


@app.command
def rollback(
    name: Name, /, *, dry_run: DryRun = False, yes: Yes = False, servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:  # fmt: skip
    """Drop a half message, in the place of its sender: nobody will ever see it. It cannot be undone.

    If no such half message is open, nothing changes, and the exit code is 3.
    """
    _end(name, False, dry_run, yes, servers, output)


def _end(name: str, commits: bool, dry_run: bool, yes: bool, servers: ServerOptions, output: Output) -> None:
    with servers.connect() as mq:
        found = mq.admin.describe_half_message(name)
        if found.state != "open":
            raise NotFound(f"half message {name} is {STATES[found.state]} already", hint="see: tinymq half list")
        visible = False
        if not dry_run:
            verb = "deliver" if commits else "drop"
            place = f"{found.topic}/{found.partition}"
            confirm(f"{verb} half message {name} of {found.producer_group} ({_short(found.context)}) in {place}", yes)
            visible = mq.admin.end_half_message(name, commit=commits)
    if output == "json":
        decision = "commit" if commits else "rollback"
        print_json({"half_message": name, "decision": decision, "decided": not dry_run, "visible": visible})
    else:
        would = "would be" if dry_run else "is"
        say(f"half message {name} of {found.producer_group} {would} {'committed' if commits else 'rolled back'}")


def _check_in(half: HalfMessageDescription) -> str | None:
    return left(half.check_at) if half.state == "open" else None


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _text(context: bytes) -> str:
    return context.decode("utf-8", "backslashreplace")


def _short(context: bytes) -> str:
    text = _text(context)
    return text if len(text) <= CONTEXT_LENGTH_MAX else text[:CONTEXT_LENGTH_MAX] + "…"


def _document(half: HalfMessageDescription) -> dict[str, Any]:
    return {
        "half_message": half.name,
        "producer_group": half.producer_group,
        "topic": half.topic,
        "partition": half.partition,
        "context": _text(half.context),
        "state": half.state,
        "begun_at": half.begun_at.isoformat(),
        "check_at": half.check_at.isoformat(),
        "checks": half.checks,
        "checkers": half.checkers,
    }
