"""`tinymq consume --group`: print records as a member of a stream group, and commit what is printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tinymq.base.errors import WrongKind
from tinymq.cli.common.output import flush, write_record

if TYPE_CHECKING:
    from tinymq.client import Client, Message
    from tinymq.client.common.start_positions import Place

POLL_S = 1.0
RECORDS_PER_POLL_MAX = 1000


def copy_as_member(
    mq: Client,
    topics: Sequence[str],
    group: str,
    start: Place,
    render: Callable[[Message], bytes],
    *,
    count: int | None,
    exit_at_end: bool,
) -> None:
    """Print up to `count` records that a group has not read, as one of its members. A new group begins at `start`.

    With `exit_at_end`, end when the group has committed all records that were there at the beginning: other members may
    print some of them. Raises WrongKind.
    """
    left = count
    member = mq.consumer(topics, group=group, start=start)
    try:
        member.open()
    except WrongKind as error:
        hint = f"the records of a queue group go to workers: tinymq worker {topics[0]} -g {group} --exec ..."
        raise WrongKind(error.message, hint=hint) from error
    with member:
        ends = {at: position + lag for at, (position, lag) in _cursors(mq, group).items()} if exit_at_end else {}
        while left is None or left > 0:
            found = member.poll(POLL_S, RECORDS_PER_POLL_MAX if left is None else min(left, RECORDS_PER_POLL_MAX))
            for message in found:
                write_record(render(message))
            if found:
                flush()
                left = None if left is None else left - len(found)
            elif exit_at_end:
                member.commit()
                if all(position >= ends.get(at, 0) for at, (position, _) in _cursors(mq, group).items()):
                    return


def _cursors(mq: Client, group: str) -> dict[tuple[str, int], tuple[int, int]]:
    """The position and the lag of the group in each partition."""
    return {(at.topic, at.partition): (at.position, at.lag) for at in mq.admin.group_lag(group)}
