"""The time limits of checkers: what comes just within one is no anomaly, and what comes just after it is one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.story import LOG, Story, T, good
from tinymq_chaos.checkers import AnomalyKind

Told = Callable[[Story, float], None]


def written(s: Story, after_s: float) -> None:
    """Nothing is acknowledged between the last fault and `after_s` later."""
    s.history.calm()
    calm_s = s.now_s
    call = s.begin("a", "send", 20.0, topic=T, partition=0, records=["a-0"], idempotent=True)
    s.now_s = calm_s + after_s
    call.ok([0, 4])
    s.stored("a-0")


def topic_made(s: Story, after_s: float) -> None:
    s.history.calm()
    calm_s = s.now_s
    call = s.begin("m", "create_topic", 20.0, name="u", partitions=1)
    s.now_s = calm_s + after_s
    call.ok("aa")


def given_up(s: Story, after_s: float) -> None:
    """A leader that leads on beside its successor."""
    s.history.led(LOG, 2, 2)
    s.now_s += after_s
    s.history.leads_no_more(1)


def answered(s: Story, after_s: float) -> None:
    """A call with a deadline of a second that ends so long after it."""
    call = s.begin("d", "offsets", within_s=1.0, topic=T)
    s.now_s = call.deadline_s + after_s
    call.failed("DeadlineExceeded")


def quick(s: Story, after_s: float) -> None:
    """Writes that each take so long, once all is quiet, over links that need a hundredth of a second."""
    s.history.link_s = 0.01
    s.history.calm()
    s.now_s += 3
    for n in range(30):
        call = s.begin("s", "send", topic=T, partition=0, records=[f"s-{n}"], idempotent=True)
        s.now_s = call.invoked_s + after_s
        call.ok([0, 4 + n])
        s.stored(f"s-{n}")


def refused_while_held(s: Story, after_s: float) -> None:
    """A leader has no room while the oldest record is held, for longer than a writer may be without progress.

    The producer may wait until the end of the lease, `after_s` after the release.
    """
    s.history.topics[T] = {"max_records": "4", "on_full": "drop_oldest"}
    lease_s = 2.0
    s.begin("h", "hold", topic=T, partition=0, hold="h1", offset=0, lease_s=lease_s).ok()
    s.begin("h", "release", topic=T, partition=0, hold="h1").ok()
    released_s = s.now_s
    s.history.calm()
    s.now_s = released_s + after_s - 0.1
    call = s.begin("a", "send", 4.0, topic=T, partition=0, records=["a-0"], idempotent=True)
    s.now_s += 3.9
    call.failed("QuotaExceeded")


def unanswered_while_held(s: Story, after_s: float) -> None:
    """A hold explains no other end than a refusal because the partition is full."""
    refused_while_held(s, 0.0)
    refused = s.history.calls[-1]
    refused.error = "QuotaExceeded" if after_s < 1 else "DeadlineExceeded"


@pytest.mark.parametrize(
    ("told", "within_s", "over_s", "kind"),
    [
        (written, 4.95, 5.05, AnomalyKind.NO_PROGRESS),
        (topic_made, 4.95, 5.05, AnomalyKind.NO_PROGRESS),
        (given_up, 2.45, 2.55, AnomalyKind.LINGERING_LEADER),
        (answered, 0.15, 0.17, AnomalyKind.NO_ANSWER),
        (quick, 0.119, 0.121, AnomalyKind.SLOW),
        (refused_while_held, 2.19, 2.21, AnomalyKind.NO_PROGRESS),
        (unanswered_while_held, 0.0, 1.0, AnomalyKind.NO_PROGRESS),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_bound_is_exact(told: Told, within_s: float, over_s: float, kind: AnomalyKind) -> None:
    assert [_kinds(told, after_s) for after_s in (within_s, over_s)] == [set(), {kind}]


def _kinds(told: Told, after_s: float) -> set[AnomalyKind]:
    story = good()
    told(story, after_s)
    calm_s = story.history.calm_s
    story.end()
    story.history.calm_s = calm_s if calm_s is not None else story.history.calm_s
    return story.kinds()
