"""Topics made again under writers: every violation is found, and what only looks like one is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.story import Story, T
from tinymq_chaos.checkers import AnomalyKind
from tinymq_chaos.history import Call, topic_key

Spoil = Callable[[Story], None]

NAME = "r"
OLD, NEW = "01" * 16, "02" * 16
LOG = (topic_key(NAME, bytes.fromhex(NEW)), 0)


def put(s: Story, record: str) -> Call:
    return s.begin("w", "send_by_name", name=NAME, partition=0, records=[record])


def changed(s: Story, kind: str, result: str | None = None) -> None:
    s.begin("o", kind, name=NAME).ok(result)


def two_topics(s: Story, *stored: str, late: bool = False) -> None:
    """An old topic acknowledges `old`. The new one of its name acknowledges `new`, and holds `stored` in the end.

    `late`: the send of `old` ends when the new topic is there.
    """
    changed(s, "create_topic", OLD)
    old = put(s, "old")
    if not late:
        old.ok([0, 0, None])
    changed(s, "delete_topic")
    changed(s, "create_topic", NEW)
    if late:
        old.unknown("OutcomeUnknown")
    put(s, "new").ok([0, len(stored) - 1 if "new" in stored else 0, None])
    s.history.replicas = [s.replica(1, role="leader"), s.replica(2), s.replica(3)] if s.entries else []
    s.entries = []
    for record in stored:
        s.stored(record)


def read(s: Story, base: int, *records: str) -> None:
    s.begin("x", "open_by_name", name=NAME).ok()
    s.begin("x", "poll_by_name", name=NAME).ok([[0, base, list(records)]])


def ended(s: Story, log_start: int = 0) -> None:
    replicas = [s.replica(1, role="leader", log=LOG), s.replica(2, log=LOG), s.replica(3, log=LOG)]
    calm_s = s.history.calm_s
    s.end(*s.history.replicas, *(replace(replica, log_start=log_start) for replica in replicas))
    s.history.calm_s = s.history.calm_s if calm_s is None else calm_s


def stored_in_the_new_topic(s: Story) -> None:
    two_topics(s, "old", "new")
    ended(s)


def shown_by_the_new_topic(s: Story) -> None:
    two_topics(s, "new")
    read(s, 0, "old")
    ended(s)


def first_shown_at_another_offset(s: Story) -> None:
    two_topics(s, "new")
    read(s, 1, "new")
    ended(s)


def a_new_log_that_begins_late(s: Story) -> None:
    two_topics(s, "new")
    ended(s, log_start=1)


def lost_by_the_new_topic(s: Story) -> None:
    two_topics(s)
    ended(s)


def never_in_the_new_topic(s: Story) -> None:
    two_topics(s, "new")
    s.history.calm()
    s.now_s += 4
    for n in range(5):
        put(s, f"refused-{n}").failed("DeadlineExceeded")
    ended(s)


BAD: list[tuple[Spoil, AnomalyKind]] = [
    (stored_in_the_new_topic, AnomalyKind.OF_DELETED_TOPIC),
    (shown_by_the_new_topic, AnomalyKind.OF_DELETED_TOPIC),
    (first_shown_at_another_offset, AnomalyKind.GAP),
    (a_new_log_that_begins_late, AnomalyKind.GAP),
    (lost_by_the_new_topic, AnomalyKind.LOST_WRITE),
    (never_in_the_new_topic, AnomalyKind.NO_PROGRESS),
]


def test_a_record_on_its_way_while_the_topic_is_made_again_may_go_on_into_the_new_one() -> None:
    story = Story()
    two_topics(story, "old", "new", late=True)
    read(story, 0, "old", "new")
    ended(story)
    assert story.kinds() == set()


def test_refusals_between_two_topics_are_no_anomaly() -> None:
    story = Story()
    two_topics(story, "new")
    put(story, "refused").failed("UnknownTopic")
    ended(story)
    assert story.kinds() == set()


@pytest.mark.parametrize(("spoil", "kind"), BAD, ids=[spoil.__name__ for spoil, _ in BAD])
def test_each_violation_is_found(spoil: Spoil, kind: AnomalyKind) -> None:
    story = Story()
    spoil(story)
    assert kind in story.kinds()
    assert T not in {call.args.get("topic") for call in story.history.calls}
