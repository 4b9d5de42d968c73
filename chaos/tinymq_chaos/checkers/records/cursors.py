"""Cursors of channels: a cursor goes forward to where a call puts it, and back only by a seek; and a request that takes
a record gets each record once.

A cursor is in its channel's partition, and no two cursors affect each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.history import Call, Log, Outcome

Cursor = tuple[Log, str]
"""(partition, channel)"""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A cursor's position at some time while `call` was running."""

    position: int
    call: Call

    @property
    def until_s(self) -> float:
        assert self.call.ended_s is not None
        return self.call.ended_s


def moved_back(facts: Facts) -> Iterator[Anomaly]:
    """A cursor is behind a position that it had or that was committed, and no seek since may explain it."""
    for cursor, sights in _sights(facts).items():
        seeks = [c for c in facts.of("seek") if _cursor(c) == cursor and c.outcome is not Outcome.FAILED]
        for now in sights:
            before = [s for s in sights if s.until_s < now.call.invoked_s and s.position > now.position]
            bad = next((s for s in before if not _led_back(seeks, s, now)), None)
            if bad is not None:
                kind = AnomalyKind.LOST_COMMIT if bad.call.kind == "commit" else AnomalyKind.CURSOR_BACK
                what = f"channel {cursor[1]} is at {now.position}, and was at {bad.position}"
                yield Anomaly.of(kind, what, cursor[0], bad.call, now.call, offsets=(bad.position, now.position))
                break


def _led_back(seeks: list[Call], before: _Seen, now: _Seen) -> bool:
    return any(
        seek.args["offset"] <= now.position
        and seek.invoked_s < now.until_s
        and (seek.outcome is not Outcome.OK or (seek.ended_s or 0.0) > before.call.invoked_s)
        for seek in seeks
    )


def strayed(facts: Facts) -> Iterator[Anomaly]:
    """A cursor that only commits and seeks move is at an offset that none of them, nor its start, gave."""
    taking = {_cursor(call) for call in facts.of("consume")}
    for cursor, sights in _sights(facts).items():
        if cursor in taking:
            continue
        moves = [c for c in facts.of("commit", "seek") if _cursor(c) == cursor]
        for seen in sights:
            places = {c.args["offset"] for c in moves if c.invoked_s < seen.until_s} | {0}
            if seen.position not in places:
                what = f"channel {cursor[1]} is at {seen.position}, where no call put it"
                yield Anomaly.of(AnomalyKind.CURSOR_STRAYED, what, cursor[0], seen.call, offsets=(seen.position,))
                break


def not_fenced(facts: Facts) -> Iterator[Anomaly]:
    """A commit succeeds for a consumer after another one replaced it, or with a generation that a seek has ended."""
    opens = [c for c in facts.of("open_channel") if c.outcome is Outcome.OK and "epoch" in c.args]
    seeks = [c for c in facts.of("seek") if c.outcome is Outcome.OK and "generation" in c.args]
    for call in facts.of("commit"):
        if call.outcome is not Outcome.OK or "epoch" not in call.args:
            continue
        cursor = _cursor(call)
        others = [c for c in opens if _cursor(c) == cursor and c.args["epoch"] > call.args["epoch"]]
        others += [c for c in seeks if _cursor(c) == cursor and c.args["generation"] > call.args["generation"]]
        before = next((c for c in others if c.ended_s is not None and c.ended_s <= call.invoked_s), None)
        if before is not None:
            what = f"channel {cursor[1]} had another consumer, or a newer seek, and an earlier commit succeeded"
            yield Anomaly.of(AnomalyKind.NOT_FENCED, what, cursor[0], before, call, offsets=(call.args["offset"],))


def taken_twice(facts: Facts) -> Iterator[Anomaly]:
    """Two requests got one record, or one request got two."""
    requests: dict[tuple[Cursor, int], Call] = {}
    records: dict[tuple[Cursor, str], Call] = {}
    for call in _taken(facts):
        cursor, (offset, _) = _cursor(call), call.result
        first = requests.setdefault((cursor, offset), call)
        if first.args["request"] != call.args["request"]:
            what = f"channel {cursor[1]} gave one record to two requests"
            yield Anomaly.of(AnomalyKind.TAKEN_TWICE, what, cursor[0], first, call, offsets=(offset,))
        before = records.setdefault((cursor, call.args["request"]), call)
        if before.result[0] != offset:
            what = f"channel {cursor[1]} answered a repeated request with a different record"
            yield Anomaly.of(AnomalyKind.TAKEN_TWICE, what, cursor[0], before, call, offsets=(before.result[0], offset))


def taken_by_nobody(facts: Facts) -> Iterator[Anomaly]:
    """A channel has passed more records than requests with unknown outcomes explain.

    A caller whose messages are read for it (`reads`) gets none that was removed by then.
    """
    given: dict[Cursor, set[int]] = {}
    answered: dict[Cursor, set[str]] = {}
    for call in _taken(facts):
        given.setdefault(_cursor(call), set()).add(call.result[0])
        answered.setdefault(_cursor(call), set()).add(call.args["request"])
    reading = {_cursor(call) for call in _taken(facts) if call.args.get("reads")}
    for cursor, offsets in given.items():
        if cursor in reading and facts.heads_removed:
            continue
        lacking = set(range(min(offsets), max(offsets))) - offsets
        unclear = {
            call.args["request"]
            for call in facts.of("consume")
            if _may_take(call, cursor) and call.outcome in (Outcome.UNKNOWN, Outcome.PENDING)
        } - answered[cursor]
        if len(lacking) > len(unclear):
            what = f"channel {cursor[1]} passed {len(lacking)} records, and {len(unclear)} requests are unclear"
            yield Anomaly(AnomalyKind.TAKEN_BY_NOBODY, what, cursor[0], (), tuple(sorted(lacking)))


def taken_as_stored(facts: Facts) -> Iterator[Anomaly]:
    """A taken record is the record at its offset; "" stands for a record that could not be read in time."""
    for call in _taken(facts):
        cursor, (offset, name) = _cursor(call), call.result
        final = facts.finals.get(cursor[0])
        if final is None or not final.certain or offset < final.start:
            continue
        there = final.at(offset)
        if name and there != name:
            what = f"{name} was given at offset {offset}, where the log has {there}"
            yield Anomaly.of(AnomalyKind.DIRTY_READ, what, cursor[0], call, offsets=(offset,))


def _may_take(call: Call, cursor: Cursor) -> bool:
    """Return whether a request asks for a record of that cursor, or of any partition."""
    place = call.args["topic"], call.args["channel"]
    return place == (cursor[0][0], cursor[1]) and call.args["partition"] in (cursor[0][1], None)


def _taken(facts: Facts) -> Iterator[Call]:
    return (c for c in facts.of("consume") if c.outcome is Outcome.OK and c.result is not None)


def _sights(facts: Facts) -> dict[Cursor, list[_Seen]]:
    """Return every answer with a cursor's position, in the order of invocation."""
    found: dict[Cursor, list[_Seen]] = {}
    for call in facts.of("open_channel", "commit", "seek", "channels"):
        if call.outcome is Outcome.OK:
            for cursor, position in _positions(call):
                found.setdefault(cursor, []).append(_Seen(position, call))
    return found


def _positions(call: Call) -> Iterable[tuple[Cursor, int]]:
    if call.kind == "channels":
        return [(((call.args["topic"], partition), channel), at) for partition, channel, at in call.result]
    return [(_cursor(call), call.result)]


def _cursor(call: Call) -> Cursor:
    return (call.args["topic"], call.args["partition"]), call.args["channel"]
