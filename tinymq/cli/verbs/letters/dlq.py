"""`tinymq dlq`: list, show, replay, redrive and purge dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tinymq.base.errors import InvalidRequest, NotFound, OffsetOutOfRange
from tinymq.base.types import Offset
from tinymq.cli.common.confirmation import confirm
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_line, print_table, say
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions
from tinymq.cli.verbs.letters.letter import Letter, details, document, read_letter
from tinymq.cli.verbs.letters.replay import load_handler, run_handler
from tinymq.cli.verbs.topic import DryRun

if TYPE_CHECKING:
    from tinymq.client import Client, Message

SUFFIX = ".dlq"
PAGE = 1000  # records that one question is about

HELP = """
Example: tinymq dlq list emails

Example: tinymq dlq replay emails 0 17 mailer:send

Example: tinymq dlq redrive emails --dry-run
"""

app = App(
    name="dlq",
    help="List, show, replay, redrive and purge dead letters: records that a queue group gave up.",
    help_epilogue=HELP,
)

Topic = Annotated[str, Parameter(help="The topic of the dead letters, or their source: orders stands for orders.dlq.")]
Partition = Annotated[int, Parameter(help="The partition's number.")]
At = Annotated[int, Parameter(help="The dead letter's offset.")]
Group = Annotated[str | None, Parameter(name=["--group", "-g"], help="Only what this group gave up.")]


@app.command(name="list")
def list_(
    topic: Topic,
    /,
    *,
    group: Group = None,
    all_: Annotated[
        bool, Parameter(name="--all", negative="", help="Those that were sent back or purged, too.")
    ] = False,
    count: Annotated[int, Parameter(name=["--count", "-n"], help="At most this many.")] = 100,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """List dead letters: where each comes from, which group gave it up, after how many deliveries, and why."""
    with servers.connect() as mq:
        name = _resolve(mq, topic)
        letters = list(_letters(mq, name, group, count, settled=all_))
    if output == "json":
        print_json({"topic": name, "letters": [document(letter) for letter in letters]})
        return
    rows = [
        (at.partition, at.offset, at.origin, at.group, at.deliveries, at.cause, at.state, at.reason) for at in letters
    ]
    print_table(["partition", "offset", "source", "group", "deliveries", "cause", "state", "reason"], rows)


@app.command
def show(
    topic: Topic, partition: Partition, offset: At, /, *, servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:  # fmt: skip
    """Show a dead letter: its record, its source, and the reason and the traceback of its last failure."""
    with servers.connect() as mq:
        name = _resolve(mq, topic)
        letter = read_letter(_read(mq, name, partition, offset), _is_settled(mq, name, partition, offset))
    if output == "json":
        print_json(document(letter))
        return
    for line in details(letter):
        print_line(line)


@app.command
def replay(
    topic: Topic,
    partition: Partition,
    offset: At,
    handler: Annotated[str, Parameter(help="MODULE:FUNCTION, found from the current directory.")],
    /,
    *,
    pdb: Annotated[bool, Parameter(negative="", help="Open the debugger where the handler fails.")] = False,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Run a stored record through a handler on this machine. Nothing changes in the cluster.

    The handler gets the record as a Message, with the headers of the original. It may be sync or async. Works for
    records of every topic.
    """
    function = load_handler(handler)
    with servers.connect() as mq:
        message = _read(mq, _resolve(mq, topic), partition, offset)
    failure = run_handler(function, message, debug=pdb)
    if output == "json":
        print_json({"topic": message.topic, "partition": partition, "offset": offset, "error": failure})
    if failure is not None:
        raise InvalidRequest(f"the handler failed: {failure}", hint="see it in the debugger: --pdb")
    say("the handler has returned")


@app.command
def redrive(
    topic: Topic,
    partition: Annotated[int | None, Parameter(help="The partition's number; without it, all of them.")] = None,
    offset: Annotated[int | None, Parameter(help="The dead letter's offset; without it, all of them.")] = None,
    /,
    *,
    group: Group = None,
    count: Annotated[int, Parameter(name=["--count", "-n"], help="At most this many.")] = 1000,
    dry_run: DryRun = False,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Send dead letters back to where they came from, for the group that gave them up, and settle them.

    If the command is interrupted, run it again: what was sent back and settled is not sent again.
    """
    rows: list[tuple[int, int, str | None, str]] = []
    with servers.connect() as mq:
        name = _resolve(mq, topic)
        for letter in _chosen(mq, name, partition, offset, group, count):
            place = (letter.partition, letter.offset)
            if letter.lost:
                rows.append((*place, None, "lost: there is nothing to send back"))
            elif dry_run:
                rows.append((*place, letter.origin, "would be sent back"))
            else:
                done = mq.admin.redrive(name, *place)
                to = None if done.offset is None else f"{done.topic}/{done.partition} offset {done.offset}"
                rows.append((*place, to, "settled before" if done.settled_before else "sent back"))
    columns = ["partition", "offset", "to", "outcome"]
    if output == "json":
        documents = [dict(zip(columns, row, strict=True)) for row in rows]
        print_json({"topic": name, "dry_run": dry_run, "letters": documents})
        return
    print_table(columns, rows)


@app.command
def purge(
    topic: Topic,
    partition: Annotated[int | None, Parameter(help="The partition's number; without it, all of them.")] = None,
    /,
    *,
    before: Annotated[int | None, Parameter(help="Only the dead letters below this offset.")] = None,
    yes: Annotated[bool, Parameter(negative="", help="Do not ask.")] = False,
    dry_run: DryRun = False,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Settle dead letters without sending them back. A topic that was made for dead letters then removes them."""
    if before is not None and partition is None:
        hint = "say which: tinymq dlq purge TOPIC PARTITION"
        raise InvalidRequest("--before is an offset of one partition", hint=hint)
    rows = []
    with servers.connect() as mq:
        name = _resolve(mq, topic)
        ends = {number: at.high_watermark for number, at in mq.admin.offsets(name).items()}
        if not dry_run:
            confirm(f"purge the dead letters of {name}", yes)
        for number in sorted(ends) if partition is None else [partition]:
            end = ends.get(number, 0) if before is None else before
            if dry_run:
                letters = _letters(mq, name, None, end, settled=False, partitions=[number])
                rows.append((number, sum(letter.offset < end for letter in letters)))
            else:
                rows.append((number, mq.admin.purge_dead_letters(name, number, end)))
    columns = ["partition", "purged"]
    if output == "json":
        documents = [dict(zip(columns, row, strict=True)) for row in rows]
        print_json({"topic": name, "dry_run": dry_run, "partitions": documents})
        return
    say(f"dead letters of {name} {'would be purged' if dry_run else 'are purged'}")
    print_table(columns, rows)


# ---- reading ------------------------------------------------------------------------------------------------


def _resolve(mq: Client, topic: str) -> str:
    """The topic of dead letters for the name of a topic or of itself."""
    if topic.endswith(SUFFIX):
        return topic
    names = {found.name for found in mq.admin.list_topics()}
    return topic + SUFFIX if topic + SUFFIX in names else topic


def _chosen(
    mq: Client, name: str, partition: int | None, offset: int | None, group: str | None, count: int
) -> Iterator[Letter]:
    """The dead letters that a command is about."""
    if offset is None or partition is None:
        only = None if partition is None else [partition]
        yield from _letters(mq, name, group, count, settled=False, partitions=only)
        return
    letter = read_letter(_read(mq, name, partition, offset), _is_settled(mq, name, partition, offset))
    if group not in (None, letter.group):
        raise NotFound(f"group {group!r} has not given up the record at offset {offset}")
    yield letter


def _letters(
    mq: Client, name: str, group: str | None, count: int, *, settled: bool, partitions: list[int] | None = None
) -> Iterator[Letter]:
    """Up to `count` dead letters, by partition and offset. Records that are not dead letters are left out."""
    left = count
    for number, at in sorted(mq.admin.offsets(name).items()):
        if partitions is not None and number not in partitions:
            continue
        done = _settled(mq, name, number, at.log_start, at.high_watermark)
        if left <= 0 or at.log_start >= at.high_watermark:
            continue
        # A letter that somebody purges or sends back at this moment may be removed while it is read.
        with mq.reader(name, [number], "earliest", "latest", on_trimmed="skip") as reader:
            for message in reader:
                letter = read_letter(message, message.offset in done)
                if letter.origin and (settled or not letter.settled) and group in (None, letter.group):
                    yield letter
                    left -= 1
                if left <= 0:
                    break


def _settled(mq: Client, name: str, partition: int, start: int, end: int) -> set[int]:
    """The offsets of a partition that were sent back or purged."""
    found: set[int] = set()
    for offset in range(start, end, PAGE):
        for story in mq.admin.stories(name, partition, offset, PAGE):
            if any(group.group == name and group.state in ("settled", "buried") for group in story.groups):
                found.add(story.offset)
    return found


def _is_settled(mq: Client, name: str, partition: int, offset: int) -> bool:
    return offset in _settled(mq, name, partition, offset, offset + 1)


def _read(mq: Client, name: str, partition: int, offset: int) -> Message:
    """One record. Raises OffsetOutOfRange if it is not there."""
    at = mq.admin.offsets(name).get(partition)
    if at is None:
        raise NotFound(f"topic {name!r} has no partition {partition}")
    if not at.log_start <= offset < at.high_watermark:
        message = f"offset {offset} is not in {name}/{partition}, which has {at.log_start} to {at.high_watermark - 1}"
        raise OffsetOutOfRange(message, hint="see: tinymq dlq list")
    with mq.reader(name, [partition], Offset(offset), Offset(offset + 1)) as reader:
        for found in reader:
            return found
    message = f"offset {offset} of {name}/{partition} was removed in this moment"
    raise OffsetOutOfRange(message, hint="see: tinymq dlq list")
