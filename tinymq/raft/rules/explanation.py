"""Why a replica does not take part in full, in words that a person can act on. Pure."""

from __future__ import annotations

SURVEY = "`tinymq cluster recover`"
NO_LEADER = f"no leader is known; if that lasts: {SURVEY}"
NO_MAJORITY = f"no leader, and no majority to elect one; if that lasts: {SURVEY}"


def explain_learner(repairing: str, leader: int | None, last_index: int, announced: int, listed: bool = False) -> str:
    """Of a replica that has no vote. `repairing`: the damage that it recovers from, "" for none; `announced`: the
    commit index that its leader named, 0 for none; `listed`: it is a member as soon as its disk knows of it."""
    if listed:
        now = "it is listed, and waits for its disk to keep that"
    elif leader is None:
        now = NO_LEADER
    elif announced > last_index:
        now = f"catching up: {last_index:,} of {announced:,} entries"
    else:
        now = f"waiting for broker {leader}, which leads, to list it"
    return f"repairing: {repairing}; {now}" if repairing else now


def explain_observer(leader: int | None, last_index: int, announced: int) -> str:
    """Of a replica whose broker is no member, and that has all that it should have when it lacks nothing."""
    if leader is None:
        return NO_LEADER
    return f"catching up: {last_index:,} of {announced:,} entries" if announced > last_index else ""


def explain_candidate() -> str:
    """Of a replica that stands, and has not won."""
    return NO_MAJORITY


def explain_led(reason: str, leader: int) -> str:
    """Rewrite a replica's reason when other brokers know the leader of its group: nothing needs recovery then."""
    waiting = f"waiting to hear from its leader (broker {leader})"
    return reason.replace(NO_LEADER, waiting).replace(NO_MAJORITY, waiting)
