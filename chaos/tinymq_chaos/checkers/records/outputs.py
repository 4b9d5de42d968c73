"""Read, process, write: each record that a group has read has exactly one output in the committed log, and no cursor
passes a record without its output.

A group that was moved back reads records again. Each of these may have one more output for each move, and has to have
one that was made after the last move. The groups of these histories begin with the first record, and seeks move them
back alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.history import Call, Log, Outcome

Place = tuple[str, str, int]
"""(topic, group, partition)"""

Outputs = dict[int, list[Call]]
"""By the offset of a record: the transactions whose output of it is there, in their order."""


def unprocessed(facts: Facts) -> Iterator[Anomaly]:
    """A cursor has passed a record of which no output is there; or none since the group was moved back before it."""
    outputs, looks = _outputs(facts), _looks(facts)
    for place, made in outputs.items():
        position, look = max(looks[place], key=lambda seen: seen[0], default=(0, None))
        missing = [offset for offset in range(_removed(facts, place), position) if offset not in made]
        if missing and look is not None:
            what = f"group {place[1]} was at {position}, and some records before have no output"
            yield _anomaly(AnomalyKind.UNPROCESSED, what, place, missing, look)
    for seek in facts.of("group_seek"):
        place = _place(seek, seek.args["partition"])
        if seek.outcome is Outcome.OK and place in outputs and looks[place]:
            first = max(seek.args["offset"], _removed(facts, place))
            yield from _unprocessed_since(seek, place, outputs[place], first, *looks[place][-1])


def _unprocessed_since(
    seek: Call, place: Place, made: Outputs, target: int, position: int, look: Call
) -> Iterator[Anomaly]:
    """`look` is the last one: the group was at `position` then."""
    if look.invoked_s < (seek.ended_s or 0.0):
        return
    since = {offset for offset, calls in made.items() if calls[-1].invoked_s > seek.invoked_s}
    missing = [offset for offset in range(target, position) if offset not in since]
    if missing:
        what = f"group {place[1]} was moved back to {target}, and at {position} some records have no output since"
        yield _anomaly(AnomalyKind.UNPROCESSED, what, place, missing, seek, look)


def processed_twice(facts: Facts) -> Iterator[Anomaly]:
    """A record has more outputs than it was read for: once, and once more for each time the group was moved back."""
    seeks: dict[Place, list[int]] = defaultdict(list)
    for seek in facts.of("group_seek"):
        if seek.outcome is not Outcome.FAILED:
            seeks[_place(seek, seek.args["partition"])].append(seek.args["offset"])
    for place, made in _outputs(facts).items():
        for offset, calls in made.items():
            most = 1 + sum(target <= offset for target in seeks[place])
            if len(calls) > most:
                what = f"group {place[1]} has {len(calls)} outputs of the record at {offset}, and {most} at most is due"
                yield _anomaly(AnomalyKind.PROCESSED_TWICE, what, place, [offset], *calls)


def not_caught_up(facts: Facts) -> Iterator[Anomaly]:
    """After all faults, a group never reads to the end."""
    for call in facts.of("caught_up"):
        if call.outcome is not Outcome.OK:
            yield Anomaly.of(AnomalyKind.NO_PROGRESS, f"the group does not get to the end: {call}", None, call)


def _anomaly(kind: AnomalyKind, what: str, place: Place, offsets: list[int], *calls: Call) -> Anomaly:
    return Anomaly.of(kind, what, (place[0], place[2]), *calls, offsets=tuple(offsets[:10]))


def _outputs(facts: Facts) -> dict[Place, Outputs]:
    """The outputs of each partition that a group has read from. Groups whose outputs may be incomplete, because a log
    is not whole, are left out."""
    found: dict[Place, Outputs] = defaultdict(lambda: defaultdict(list))
    unknown: set[str] = set()
    for call in facts.of("transact"):
        if "inputs" not in call.args:
            continue
        for log, names in _parts(call).items():
            if not facts.is_whole(log):
                unknown.add(call.args["group"])
            for name in names:
                partition, offset = call.args["inputs"][name]
                made = found[_place(call, partition)]
                if name in facts.places(log):
                    made[offset].append(call)
    return {place: made for place, made in found.items() if place[1] not in unknown}


def _parts(call: Call) -> dict[Log, list[str]]:
    return {(call.args["topic"], partition): names for partition, names in call.args["parts"]}


def _looks(facts: Facts) -> dict[Place, list[tuple[int, Call]]]:
    """Every position of a cursor that a call has shown, in the order of the calls."""
    found: dict[Place, list[tuple[int, Call]]] = defaultdict(list)
    for look in facts.of("group_lag"):
        for partition, position in look.result if look.outcome is Outcome.OK else ():
            found[_place(look, partition)].append((position, look))
    return found


def _removed(facts: Facts, place: Place) -> int:
    """Below this offset, a fault may have removed records before the group read them."""
    starts = [replica.log_start for replica in facts.replicas.get((place[0], place[2]), ())]
    return max(starts, default=0) if facts.heads_removed else 0


def _place(call: Call, partition: int) -> Place:
    return call.args.get("source", call.args["topic"]), call.args["group"], partition
