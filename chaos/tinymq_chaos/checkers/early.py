"""Nothing is answered, and nothing shown, before it is committed somewhere: later may be never."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from tinymq_chaos.checkers.anomaly import Anomaly, Kind, times
from tinymq_chaos.checkers.facts import Facts
from tinymq_chaos.checkers.writes import acknowledged, place_of
from tinymq_chaos.history import Call, Log, Outcome


def early_answers(facts: Facts) -> Iterator[Anomaly]:
    """Acknowledged by a quorum, and committed later, or not at all."""
    for call in acknowledged(facts) if facts.history.commits else ():
        log, base, names = place_of(call)
        end = _end_at(facts, log, call)
        if end is not None and base + len(names) > end:
            what = f"acknowledged at offset {base}, when {end} was the end of what is committed"
            yield Anomaly(Kind.UNCOMMITTED, what, log, tuple(names), (base,), (call.process,), times(call))


def early_reads(facts: Facts) -> Iterator[Anomaly]:
    """Records that readers were shown, and ends that they were told."""
    for call in facts.polls if facts.history.commits else ():
        for partition, base, names in call.result:
            yield from _shown(facts, call, partition, base + len(names))
    for call in facts.of("offsets"):
        if call.outcome is Outcome.OK:
            for partition, _, high_watermark in call.result:
                yield from _shown(facts, call, partition, high_watermark)


def _shown(facts: Facts, call: Call, partition: int, shown: int) -> Iterator[Anomaly]:
    log = (call.args["topic"], partition)
    end = _end_at(facts, log, call)
    if end is not None and shown > end:
        what = f"shown up to offset {shown}, when {end} was the end of what is committed"
        yield Anomaly(Kind.UNCOMMITTED, what, log, (), (end, shown), (call.process,), times(call))


def _end_at(facts: Facts, log: Log, call: Call) -> int | None:
    """What was committed when `call` ended; None where nobody looked, or where a deletion may have come between."""
    commits = facts.history.commits.get(log)
    if commits is None or call.ended_s is None or log[0].partition("#")[0] in facts.maybe_deleted:
        return None
    at = bisect_right(commits, call.ended_s, key=lambda commit: commit[0])
    return commits[at - 1][1] if at else 0
