"""Topics that were deleted and made again under writers: the new one has nothing of the old one.

One owner creates and deletes each name, so the topics of a name follow one another. A topic may exist from the first
creation after a deletion that may have made it, and surely exists when its id was first answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import SETTLED_S, WELL, Facts
from tinymq_chaos.history import Call, FinalReplica, Outcome, topic_key

TRIES_MIN = 5  # writes that a client began when all was well, of which one has to be acknowledged


@dataclass(frozen=True, slots=True)
class TopicLife:
    """One of the topics of a name. Times are in seconds of the history's clock."""

    name: str
    topic_id: str  # hex
    began_s: float  # it did not exist before
    known_s: float  # it existed

    @property
    def key(self) -> str:
        return topic_key(self.name, bytes.fromhex(self.topic_id))


def lives(facts: Facts) -> dict[str, list[TopicLife]]:
    """Return the topics of each name that clients write to by name, in order."""
    names = {call.args["name"] for call in facts.of("send_by_name")}
    found: dict[str, list[TopicLife]] = {name: [] for name in sorted(names)}
    tried_s: dict[str, float] = {}  # when the first creation since the last deletion was invoked
    for call in facts.of("create_topic", "get_topic", "delete_topic"):
        name = call.args["name"]
        if name not in found or call.outcome is Outcome.FAILED:
            continue
        if call.kind == "delete_topic":
            tried_s.pop(name, None)
            continue
        if call.kind == "create_topic":
            tried_s.setdefault(name, call.invoked_s)
        if call.result is not None and call.result not in {life.topic_id for life in found[name]}:
            began_s = tried_s.get(name, 0.0)
            found[name].append(TopicLife(name, call.result, began_s, call.ended_s or began_s))
    return found


def records_of_the_deleted(facts: Facts) -> Iterator[Anomaly]:
    """A topic has, or shows, a record whose send had ended before the topic was made."""
    for name, known in lives(facts).items():
        for life in known:
            for replica in _last_replicas(facts, life):
                records = [record for entry in replica.entries for record in entry.records]
                yield from _old(facts, life, records, replica)
        for reader, polls in _readers(facts, name):
            begun = [life for life in known if life.known_s < reader.invoked_s]
            for poll in polls if begun else ():
                shown = [record for _, _, records in poll.result for record in records]
                yield from _old(facts, begun[-1], shown, poll)


def _old(facts: Facts, life: TopicLife, records: list[str], where: FinalReplica | Call) -> Iterator[Anomaly]:
    for record in records:
        call = facts.sent_by_name.get(record)
        if call is None or call.outcome is Outcome.PENDING or call.ended_s is None or call.ended_s >= life.began_s:
            continue
        calls = (call, where) if isinstance(where, Call) else (call,)
        what = f"its send ended {life.began_s - call.ended_s:.3f} s before this topic was made"
        yield Anomaly.of(AnomalyKind.OF_DELETED_TOPIC, what, (life.key, 0), *calls, records=(record,))
        return


def new_topics_begin_at_zero(facts: Facts) -> Iterator[Anomaly]:
    """A reader of a new topic, from its beginning, is first shown another offset than 0; or its log begins later."""
    if facts.heads_removed:
        return
    for name, known in lives(facts).items():
        for reader, polls in _readers(facts, name):
            seen: set[int] = set()
            for poll in polls:
                for partition, base, records in poll.result:
                    if partition not in seen and base != 0:
                        what = f"a reader from the beginning was first shown {records[0]} at offset {base}"
                        yield Anomaly.of(AnomalyKind.GAP, what, (name, partition), reader, poll, offsets=(base,))
                    seen.add(partition)
        for life in known:
            for replica in _last_replicas(facts, life):
                if replica.log_start != 0:
                    what = f"the log of a new topic begins at {replica.log_start}"
                    yield Anomaly(AnomalyKind.GAP, what, replica.log, brokers=(replica.broker,))


def lost_in_the_last_topic(facts: Facts) -> Iterator[Anomaly]:
    """A record is acknowledged by the topic that is left, and is not at its offset."""
    for known in lives(facts).values():
        for life in known[-1:]:
            for call in _by_name(facts, life):
                if call.outcome is not Outcome.OK or call.result is None:
                    continue
                partition, offset, _ = call.result
                final = facts.finals.get((life.key, partition))
                if final is not None and final.certain and final.at(offset) != call.args["records"][0]:
                    what = f"acknowledged at offset {offset}, where the log has {final.at(offset) or 'nothing'}"
                    yield Anomaly.of(
                        AnomalyKind.LOST_WRITE, what, (life.key, partition), call, records=call.args["records"]
                    )


def refused_by_the_last_topic(facts: Facts) -> Iterator[Anomaly]:
    """All is well and the topic exists, and a writer's records are still refused."""
    calm_s = facts.history.calm_s
    for known in lives(facts).values() if calm_s is not None else ():
        for life in known[-1:]:
            if not any(True for _ in _last_replicas(facts, life)) or calm_s is None:
                continue
            tried = [c for c in _by_name(facts, life) if c.invoked_s > max(calm_s, life.known_s) + SETTLED_S]
            for process in sorted({call.process for call in tried}):
                own = [call for call in tried if call.process == process]
                if len(own) >= TRIES_MIN and not any(call.outcome is Outcome.OK for call in own):
                    what = f"none of {len(own)} writes to the new topic is acknowledged: {own[0].error}"
                    yield Anomaly.of(AnomalyKind.NO_PROGRESS, what, (life.key, own[0].args["partition"]), own[0])


def _by_name(facts: Facts, life: TopicLife) -> Iterator[Call]:
    """Yield the sends that began when the last topic of the name was there."""
    return (c for c in facts.of("send_by_name") if c.args["name"] == life.name and c.invoked_s > life.known_s)


def _last_replicas(facts: Facts, life: TopicLife) -> Iterator[FinalReplica]:
    return (r for log, there in facts.replicas.items() if log[0] == life.key for r in there if r.role in WELL)


def _readers(facts: Facts, name: str) -> Iterator[tuple[Call, list[Call]]]:
    """Yield each reader's opening, with its polls that showed records."""
    polls: dict[str, list[Call]] = {}
    for call in facts.of("poll_by_name"):
        if call.outcome is Outcome.OK and call.result:
            polls.setdefault(call.process, []).append(call)
    for opening in facts.of("open_by_name"):
        if opening.args["name"] == name and opening.outcome is Outcome.OK:
            yield opening, polls.get(opening.process, [])
