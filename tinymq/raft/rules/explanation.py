"""Explains why a replica does not take part in full, so that a person can act on it. Pure."""

from __future__ import annotations

SURVEY = "`tinymq cluster recover`"
NO_LEADER = f"no leader is known; if that lasts: {SURVEY}"
NO_MAJORITY = f"no leader, and no majority to elect one; if that lasts: {SURVEY}"


def explain_learner(repairing: str, leader: int | None, last_index: int, announced: int, listed: bool = False) -> str:
    """Explain a learner, which has no vote.

    `repairing`: the damage that it recovers from; "": none. `announced`: the commit index that its leader named; 0:
    none. `listed`: the applied CONFIG lists it, and it becomes a member when its disk has stored that.
    """
    if listed:
        now = "it is listed, and waits until its disk has stored its membership"
    elif leader is None:
        now = NO_LEADER
    elif announced > last_index:
        now = f"catching up: {last_index:,} of {announced:,} entries"
    else:
        now = f"waiting for broker {leader}, which leads, to list it"
    return f"repairing: {repairing}; {now}" if repairing else now


def explain_observer(leader: int | None, last_index: int, announced: int) -> str:
    """Explain an observer: a replica whose broker is no member. Returns "" if it lacks no entry."""
    if leader is None:
        return NO_LEADER
    return f"catching up: {last_index:,} of {announced:,} entries" if announced > last_index else ""


def explain_candidate() -> str:
    """Explain a candidate that has not won."""
    return NO_MAJORITY


def explain_led(reason: str, leader: int) -> str:
    """Rewrite a replica's reason when other brokers know the leader of its group. Then nothing needs recovery."""
    waiting = f"waiting to hear from its leader (broker {leader})"
    return reason.replace(NO_LEADER, waiting).replace(NO_MAJORITY, waiting)
