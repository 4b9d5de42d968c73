"""Stream groups: no record is skipped, no cursor moves back, and no owner commits what another one has by now
(docs/groups.md). The groups of these histories begin with the first record, and seeks move them back alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.history import Call, Outcome

Place = tuple[str, str, int]
"""(topic, group, partition)"""


def skipped_by_the_group(facts: Facts) -> Iterator[Anomaly]:
    """A group's cursor has passed a record that was handed out to no member before."""
    handed: dict[Place, dict[int, float]] = defaultdict(dict)
    for call in facts.of("handed_out"):
        for partition, offset in call.result or ():
            handed[_place(call, partition)].setdefault(offset, call.invoked_s)
    for place, (position, call) in _furthest(facts).items():
        missing = [offset for offset in range(position) if offset not in handed[place]]
        if missing:
            what = f"group {place[1]} is at {position}, and no member got some of the records before"
            yield Anomaly.of(AnomalyKind.TAKEN_BY_NOBODY, what, (place[0], place[2]), call, offsets=tuple(missing[:10]))


def group_moved_back(facts: Facts) -> Iterator[Anomaly]:
    """A group's cursor is behind a position that it had before, or that was committed."""
    seen: dict[Place, list[tuple[float, int, Call]]] = defaultdict(list)  # (end of the call, position, call)
    for call in facts.of("group_commit", "group_lag"):
        if call.outcome is Outcome.OK and call.ended_s is not None:
            for partition, position in _positions(call):
                seen[_place(call, partition)].append((call.ended_s, position, call))
    divided = _divided(facts) if facts.heads_removed else set[str]()  # their leaders count what is gone as settled
    for now in facts.of("group_lag"):
        if now.args["group"] in divided:
            continue
        for partition, position in _positions(now) if now.outcome is Outcome.OK else ():
            moved_s = _moved_s(facts, now, partition)
            seen_before = [s for s in seen[_place(now, partition)] if s[0] < now.invoked_s and s[1] > position]
            before = [s for s in seen_before if s[2].invoked_s > moved_s]
            if before:
                what = f"group {now.args['group']} is at {position}, and was at {before[0][1]}"
                log = (now.args["topic"], partition)
                yield Anomaly.of(AnomalyKind.CURSOR_BACK, what, log, before[0][2], now, offsets=(position,))
                return


def two_owners_commit(facts: Facts) -> Iterator[Anomaly]:
    """A member commits in a partition that another member has taken over since."""
    owners: dict[Place, list[Call]] = defaultdict(list)  # the calls by which members got the partition, in their order
    for call in facts.of("assigned"):
        for partition in call.result or ():
            owners[_place(call, partition)].append(call)
    for commit in facts.of("group_commit"):
        if commit.outcome is not Outcome.OK:
            continue
        for partition, offset in commit.args["offsets"]:
            got = owners[_place(commit, partition)]
            mine = max((c.invoked_s for c in got if c.process == commit.process), default=0.0)
            after = [c for c in got if c.process != commit.process and mine < c.invoked_s < commit.invoked_s]
            if after:
                what = f"group {commit.args['group']}: a member commits what another one got before"
                log = (commit.args["topic"], partition)
                yield Anomaly.of(AnomalyKind.NOT_FENCED, what, log, after[0], commit, offsets=(offset,))


def _moved_s(facts: Facts, look: Call, partition: int) -> float:
    """Until when a seek, or the deletion of the group, may have moved the cursor, at most until the look ended."""
    moved_s = -1.0
    for call in facts.of("group_seek", "group_delete"):
        mine = call.args["group"] == look.args["group"] and call.args.get("partition", partition) == partition
        if mine and call.outcome is not Outcome.FAILED and call.invoked_s <= (look.ended_s or 0.0):
            known = call.outcome is Outcome.OK and call.ended_s is not None
            moved_s = max(moved_s, call.ended_s if known and call.ended_s is not None else math.inf)
    return moved_s


def _positions(call: Call) -> list[tuple[int, int]]:
    return [(partition, position) for partition, position in call.args.get("offsets") or call.result or ()]


def _furthest(facts: Facts) -> dict[Place, tuple[int, Call]]:
    """The highest position of each cursor that a call has shown."""
    found: dict[Place, tuple[int, Call]] = {}
    divided = _divided(facts)
    for call in facts.of("group_commit", "group_lag"):
        for partition, position in _positions(call) if call.outcome is Outcome.OK else ():
            place = _place(call, partition)
            if place[1] in divided:
                continue
            if position > found.get(place, (0, call))[0]:
                found[place] = position, call
    return found


def _divided(facts: Facts) -> set[str]:
    """Return the queue groups: their records are divided one by one, among workers."""
    return {call.args["group"] for call in facts.of("job")}


def _place(call: Call, partition: int) -> Place:
    return call.args["topic"], call.args["group"], partition
