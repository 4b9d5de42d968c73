"""No answer and no read precedes the commit of its record: a later commit may never come."""

from __future__ import annotations

from collections.abc import Iterator

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.checkers.records.writes import acknowledged, place_of
from tinymq_chaos.history import Call, Log


def early_answers(facts: Facts) -> Iterator[Anomaly]:
    """Writes that a quorum acknowledged, and that were committed later, or never."""
    for call in acknowledged(facts) if facts.history.commits else ():
        log, base, names = place_of(call)
        end = facts.committed_by(log, call)
        if end is not None and base + len(names) > end:
            what = f"acknowledged at offset {base}, when {end} was the end of the committed records"
            yield Anomaly.of(AnomalyKind.UNCOMMITTED, what, log, call, records=names, offsets=(base,))


def early_reads(facts: Facts) -> Iterator[Anomaly]:
    """Records and ends that readers were shown before their commit."""
    if not facts.history.commits:
        return
    for shown in facts.shown:
        yield from _shown(facts, shown.call, shown.log, shown.base + len(shown.names))
    for call, log, _, high_watermark in facts.ends():
        yield from _shown(facts, call, log, high_watermark)


def _shown(facts: Facts, call: Call, log: Log, shown: int) -> Iterator[Anomaly]:
    end = facts.committed_by(log, call)
    if end is not None and shown > end:
        what = f"shown up to offset {shown}, when {end} was the end of the committed records"
        yield Anomaly.of(AnomalyKind.UNCOMMITTED, what, log, call, offsets=(end, shown))
