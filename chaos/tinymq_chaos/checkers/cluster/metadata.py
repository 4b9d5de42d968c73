"""The topics as one linearizable register: all answers fit one order of all changes and reads.

The model is the registry as a client sees it: names, each with the id of its topic, or without a topic. A creation with
an unknown outcome may have created a topic whose id only a later read shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.checkers.common.linearizability import Operation, check_linearizable
from tinymq_chaos.history import METADATA, Call, Outcome

MADE = "?"  # the first character of an id that is not known yet, because the creation has no answer

Names = tuple[tuple[str, str], ...]
State = tuple[Names, frozenset[str]]
"""(name, topic id) of every topic, sorted; and the ids whose creation is known, which no unknown creation can turn out
to have.
"""


@dataclass(frozen=True, slots=True)
class Create:
    name: str
    topic_id: str  # or MADE and a number


@dataclass(frozen=True, slots=True)
class Delete:
    name: str
    surely: bool  # the answer proves that there was a topic


@dataclass(frozen=True, slots=True)
class Read:
    """The name has this topic; None: it has none."""

    name: str
    topic_id: str | None


@dataclass(frozen=True, slots=True)
class ReadAll:
    """These are all topics whose names begin with a prefix."""

    topics: Names
    prefix: str


@dataclass(frozen=True, slots=True)
class Exists:
    """The name has some topic, because a creation was refused."""

    name: str


Op = Create | Delete | Read | Exists | ReadAll


def step(state: State, op: Op) -> State | None:
    """Return the registry after `op`; None if the registry could not have answered so."""
    names, found = dict(state[0]), state[1]
    if isinstance(op, Create):
        if op.name in names:
            return None
        return _state(names | {op.name: op.topic_id}, found)
    if isinstance(op, Delete):
        if op.name not in names:
            return None if op.surely else state
        del names[op.name]
        return _state(names, found)
    if isinstance(op, Exists):
        return state if op.name in names else None
    wanted = op.topics if isinstance(op, ReadAll) else ((op.name, op.topic_id),)
    if isinstance(op, ReadAll) and len(wanted) != sum(name.startswith(op.prefix) for name in names):
        return None
    for name, topic_id in wanted:
        there = names.get(name)
        if there is not None and there.startswith(MADE) and topic_id is not None and topic_id not in found:
            names[name], found = topic_id, found | {topic_id}
        elif there != topic_id:
            return None
    return _state(names, found)


def _state(names: dict[str, str], found: frozenset[str]) -> State:
    return tuple(sorted(names.items())), found


def operations(calls: Iterable[Call]) -> list[tuple[Call, Op]]:
    """Return what calls prove about the registry. Calls that failed before they reached it prove nothing."""
    return [(call, op) for call in calls if (op := _op(call)) is not None]


def _op(call: Call) -> Op | None:
    name, ok = call.args.get("name", ""), call.outcome is Outcome.OK
    failed = call.outcome is Outcome.FAILED
    if call.kind == "create_topic":
        if failed and call.error == "TopicExists":
            return Exists(name)
        # UnknownTopic: the topic was created, and deleted before the answer
        if failed and call.error != "UnknownTopic":
            return None
        return Create(name, call.result if ok else f"{MADE}{call.number}")
    if call.kind == "delete_topic":
        if failed:
            return Read(name, None) if call.error == "UnknownTopic" else None
        return Delete(name, ok)
    if call.kind == "get_topic":
        if failed:
            return Read(name, None) if call.error == "UnknownTopic" else None
        return Read(name, call.result) if ok else None
    return ReadAll(tuple(sorted(call.result.items())), call.args.get("prefix", "")) if ok else None


def not_linearizable(facts: Facts) -> Iterator[Anomaly]:
    """Check name by name, which gives the shortest explanation; then all names at once."""
    calls = list(facts.of("create_topic", "delete_topic", "get_topic", "list_topics"))
    known = frozenset(c.result for c in calls if c.kind == "create_topic" and c.outcome is Outcome.OK)
    ops = operations(calls)
    wrong = False
    for name in sorted({op.name for _, op in ops if not isinstance(op, ReadAll)}):
        own = [(call, of_name) for call, op in ops if (of_name := _of_name(op, name)) is not None]
        for anomaly in _judge(own, known, f"topic {name}"):
            wrong = True
            yield anomaly
    for prefix in sorted({op.prefix for _, op in ops if isinstance(op, ReadAll)}) if not wrong else ():
        among = [(call, op) for call, op in ops if _among(op, prefix)]
        yield from _judge(among, known, f"all topics {prefix}".rstrip())


def _of_name(op: Op, name: str) -> Op | None:
    """Return what `op` proves about one name."""
    if isinstance(op, ReadAll):
        return Read(name, dict(op.topics).get(name)) if name.startswith(op.prefix) else None
    return op if op.name == name else None


def _among(op: Op, prefix: str) -> bool:
    return op.prefix == prefix if isinstance(op, ReadAll) else op.name.startswith(prefix)


def _judge(ops: list[tuple[Call, Op]], known: frozenset[str], of_what: str) -> Iterator[Anomaly]:
    initial: State = ((), known)
    timed = [Operation((call, op), call.invoked_s, _end(call)) for call, op in ops]
    verdict = check_linearizable(timed, initial, lambda state, pair: step(state, pair[1]))
    if verdict.linearizable:
        return
    assert verdict.stuck is not None, "a search that fails is stuck somewhere"
    call, _ = verdict.stuck.what
    overlapping = [c for c, _ in ops if c is not call and c.invoked_s <= _end(call) and _end(c) >= call.invoked_s]
    answer = f", answered {call.result}" if call.result is not None else ""
    what = f"{of_what}: no order of the calls explains {call}{answer}"
    if overlapping:
        what += f"; it overlaps {'; '.join(str(c) for c in overlapping[:3])}"
    yield Anomaly.of(AnomalyKind.NOT_LINEARIZABLE, what, METADATA, call)


def _end(call: Call) -> float:
    """Return the end of a call. A call without an answer may take effect at any time after its begin."""
    certain = call.outcome in (Outcome.OK, Outcome.FAILED) and call.ended_s is not None
    return call.ended_s if certain and call.ended_s is not None else math.inf
