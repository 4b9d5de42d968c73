"""Queue groups: what must never happen to their records (docs/groups.md).

Where a fault removes heads of logs below the log start that is applied, leaders take different records for settled:
some of these checkers find nothing then.

Most of these checkers read what an observer saw of brokers (../../group_changes.py). Histories without that, of real
processes, are judged by what workers were handed out, by their settlements, and by the dead letters.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import CLOCKS, WRONG_CLOCKS, Facts
from tinymq_chaos.group_changes import ATTACHED, CONFIRMED, ENDED, GRANTED, LEADS, LeaseChange, Place, QueueChange
from tinymq_chaos.history import Call, Log, Outcome

REJECTED = 1 << 31  # added to the number of a delivery that was rejected
LATE_S = 1.0
ATTACH_S = 2.0  # a worker has attached to all partitions, when all is quiet
GROUP_CHANGES = ("group_seek", "group_delete")

Delivery = tuple[Log, str, int, int]
"""(log, group, generation, offset)"""


def settled_by_nobody(facts: Facts) -> Iterator[Anomaly]:
    """A group is done with a record that no worker acknowledged in its generation, and that was not buried."""
    acked: dict[Delivery, float] = {}  # when the first ack was sent
    for call in facts.of("settle"):
        if call.args["verb"] == "ack" and call.outcome is not Outcome.FAILED:
            acked.setdefault(_delivery(call), call.invoked_s)
    for before, now in steps(facts):
        for offset in now.settled:
            known = acked.get((now.log, now.group, now.generation, offset))
            if offset < now.log_start or (known is not None and known <= now.at_s) or offset in before.burials:
                continue
            what = f"group {now.group} is done with a record that no worker acknowledged"
            yield seen(AnomalyKind.SETTLED_BY_NOBODY, what, now, offset)


def acks_are_kept(facts: Facts) -> Iterator[Anomaly]:
    """An ack was confirmed, and its record is not settled, although nothing has moved the group."""
    if facts.heads_removed:
        return
    states: dict[tuple[Log, str], list[QueueChange]] = defaultdict(list)
    for change in facts.history.queues:
        states[change.log, change.group].append(change)
    for call in facts.of("settle"):
        log, group, generation, offset = _delivery(call)
        if call.args["verb"] != "ack" or call.outcome is not Outcome.OK or (log, group) not in states:
            continue
        newest = [state for state in states[log, group] if state.at_s <= (call.ended_s or 0.0)][-1:]
        if not newest or newest[0].generation != generation or offset < newest[0].position:
            continue
        if not any(offset in change.settled for change in states[log, group] if change.generation == generation):
            what = f"group {group}: an ack was confirmed, and changed nothing"
            yield Anomaly.of(AnomalyKind.LOST_COMMIT, what, log, call, offsets=(offset,))


def position_back(facts: Facts) -> Iterator[Anomaly]:
    """A cursor of a group is behind where it was before, and no seek has moved it."""
    for before, now in steps(facts):
        if now.position < before.position and now.generation == before.generation:
            what = f"group {now.group} is at {now.position}, and was at {before.position}"
            yield seen(AnomalyKind.CURSOR_BACK, what, now, now.position)


def leased_twice(facts: Facts) -> Iterator[Anomaly]:
    """The newest leader grants a record that another worker still has, or one whose key another worker has."""
    if facts.heads_removed:
        return
    keys, starts, queues = _keys(facts), dict[Log, int](), iter(facts.history.queues)
    waiting = next(queues, None)
    for leader, change in grants(facts):
        while waiting is not None and waiting.at_s <= change.at_s:
            starts[waiting.log] = waiting.log_start
            waiting = next(queues, None)
        for offset, other in leader.held_by_others(change):
            if offset < starts.get(change.log, 0):
                continue  # a trim has removed it: whoever has it has nothing to settle
            same = offset == change.offset
            key = keys.get((change.log, change.group, offset))
            if same or (key is not None and key == keys.get((change.log, change.group, change.offset))):
                whose = "a record" if same else f"a record of key {key}"
                what = (
                    f"group {change.group}: {whose} is granted to {change.session[:8]}, and {other.session[:8]} has it"
                )
                yield Anomaly(
                    AnomalyKind.LEASED_TWICE, what, change.log, offsets=(offset, change.offset),
                    times_s=(other.at_s, change.at_s), brokers=(change.broker,),
                )  # fmt: skip
                return


def keys_out_of_order(facts: Facts) -> Iterator[Anomaly]:
    """In a group with keyed order, a record was settled while an earlier one of its key was not."""
    if facts.heads_removed:
        return
    keys = _keys(facts)
    open_before: dict[Place, set[int]] = {}
    for before, now in steps(facts):
        if before.generation != now.generation or now.place not in open_before:
            known = {o for log, group, o in keys if (log, group) == (now.log, now.group) and o >= now.position}
            open_before[now.place] = known
        still = open_before[now.place]
        still.difference_update(now.settled)
        still.difference_update([offset for offset in still if offset < now.position])
        for offset in now.settled:
            key = keys.get((now.log, now.group, offset))
            earlier = [o for o in still if o < offset and keys[now.log, now.group, o] == key] if key is not None else []
            if earlier and offset >= now.log_start:
                what = f"group {now.group}: the record of key {key} before it is not settled"
                yield seen(AnomalyKind.KEY_OUT_OF_ORDER, what, now, offset)
                return


def dead_letters(facts: Facts) -> Iterator[Anomaly]:
    """At the end, there is one dead letter for each burial. A burial that ended by the group's deletion may have
    one."""
    for call in facts.of("dead_letters"):
        if call.outcome is not Outcome.OK:
            continue
        topic, group = call.args["topic"], call.args["group"]
        there = Counter((partition, offset) for partition, offset, *_ in call.result)
        begun, ended = _burials(facts, topic, group)
        for place in sorted(there.keys() | begun.keys()):
            least, most = 0 if facts.heads_removed else ended[place], begun[place]
            if facts.history.queues and not least <= there[place] <= most:
                what = f"group {group}: {there[place]} dead letters of a record that was buried {most} times"
                yield Anomaly.of(AnomalyKind.DEAD_LETTERS, what, (topic, place[0]), call, offsets=(place[1],))
        for partition, offset, _, record in call.result:
            sent = facts.sent.get(record) if record else None
            if record and (sent is None or sent.args["topic"] != topic):
                what = f"a dead letter of group {group} is no record of the topic: {record}"
                yield Anomaly.of(AnomalyKind.DEAD_LETTERS, what, (topic, partition), call, offsets=(offset,))


def rejected_and_delivered(facts: Facts) -> Iterator[Anomaly]:
    """A record was handed out after its rejection, or more often than the group allows, in one generation."""
    rejected: dict[Delivery, Call] = {}
    for call in facts.of("settle"):
        if call.args["verb"] == "reject" and call.outcome is Outcome.OK:
            rejected.setdefault(_delivery(call), call)
    for job in facts.of("job"):
        sent = rejected.get(_delivery(job))
        if sent is None or sent.ended_s is None or job.args["delivery"] <= sent.args["delivery"]:
            continue
        if job.invoked_s > sent.ended_s + LATE_S:
            what = f"group {job.args['group']}: a rejected record is delivered"
            log, _, _, offset = _delivery(job)
            yield Anomaly.of(AnomalyKind.DEAD_LETTERS, what, log, sent, job, offsets=(offset,))


def acked_and_delivered(facts: Facts) -> Iterator[Anomaly]:
    """A record was handed out after its ack was confirmed, in one generation. It needs nothing but calls."""
    if facts.heads_removed:
        return
    acked: dict[Delivery, Call] = {}  # the ack that was confirmed first
    for call in facts.of("settle"):
        if call.args["verb"] == "ack" and call.outcome is Outcome.OK and call.ended_s is not None:
            before = acked.setdefault(_delivery(call), call)
            if call.ended_s < (before.ended_s or 0.0):
                acked[_delivery(call)] = call
    for job in facts.of("job"):
        ack = acked.get(_delivery(job))
        if ack is not None and ack.ended_s is not None and job.invoked_s > ack.ended_s + LATE_S:
            what = f"group {job.args['group']}: an acknowledged record is delivered again"
            log, _, _, offset = _delivery(job)
            yield Anomaly.of(AnomalyKind.LOST_COMMIT, what, log, ack, job, offsets=(offset,))


def delivered_too_early(facts: Facts) -> Iterator[Anomaly]:
    """The newest leader grants a record again before its time, by its append clock; or a worker gets it before the
    delay that its nack asked for is over."""
    state: dict[Place, dict[int, int]] = {}
    queues = iter(facts.history.queues)
    waiting = next(queues, None)
    for _, change in grants(facts):
        while waiting is not None and waiting.at_s <= change.at_s:
            state[waiting.place] = {offset: not_before_us for offset, _, _, not_before_us in waiting.failures}
            waiting = next(queues, None)
        not_before_us = state.get((change.log, change.group, change.group_id), {}).get(change.offset, 0)
        if change.now_us and not_before_us > change.now_us:
            what = f"group {change.group}: granted {(not_before_us - change.now_us) / 1e6:.3f} s before its time"
            yield Anomaly(AnomalyKind.TOO_EARLY, what, change.log, offsets=(change.offset,), times_s=(change.at_s,))
    if any(change.what.startswith(f"FAULT {kind}") for change in facts.history.changes for kind in WRONG_CLOCKS):
        return  # append times may jump
    yield from _sooner_than_asked(facts)


def _sooner_than_asked(facts: Facts) -> Iterator[Anomaly]:
    nacks: dict[tuple[Delivery, int], Call] = {}
    for call in facts.of("settle"):
        if call.args["delay_s"] is not None and call.outcome is Outcome.OK:
            nacks[_delivery(call), call.args["delivery"]] = call
    for job in facts.of("job"):
        nack = nacks.get((_delivery(job), job.args["delivery"] - 1))
        if nack is None or job.invoked_s >= nack.invoked_s + nack.args["delay_s"] * (1 - CLOCKS):
            continue
        if job.invoked_s < nack.invoked_s:
            continue  # the nack came too late: it succeeds, without an effect, when the record is settled
        what = f"group {job.args['group']}: delivered {job.invoked_s - nack.invoked_s:.3f} s after its nack"
        yield Anomaly.of(AnomalyKind.TOO_EARLY, what, _delivery(job)[0], nack, job, offsets=(job.args["offset"],))


def delivered_too_late(facts: Facts) -> Iterator[Anomaly]:
    """When all is quiet and a worker has credit, a record is granted more than LATE_S after its time; or, in the end,
    not everything can be settled."""
    for call in facts.of("work_off") if not facts.heads_removed else ():
        if call.outcome is not Outcome.OK:
            yield Anomaly.of(
                AnomalyKind.STUCK, f"group {call.args['group']} does not get to the end: {call}", None, call
            )
        begins_s = call.invoked_s + ATTACH_S
        due: dict[tuple[Place, int], float] = {}
        for at_s, place, offset, due_s in _due(facts, call):
            since_s = due.get((place, offset))
            if due_s is not None:
                due[place, offset] = due_s
            elif since_s is not None and at_s > max(since_s, begins_s) + LATE_S:
                what = f"group {place[1]}: granted {at_s - max(since_s, begins_s):.3f} s after its time"
                yield Anomaly(AnomalyKind.STUCK, what, place[0], offsets=(offset,), times_s=(at_s,))


def _due(facts: Facts, call: Call) -> Iterator[tuple[float, Place, int, float | None]]:
    """While a call goes on: (when, group, offset, when the record is due). None: it is granted. In groups with keyed
    order, only records without a key."""
    topic, group = call.args["topic"], call.args["group"]
    keys, clock = _keys(facts), {}
    events: list[QueueChange | LeaseChange] = sorted(
        [*facts.history.queues, *facts.history.leases], key=lambda event: event.at_s
    )
    for event in events:
        if event.log[0] != topic or event.group != group or event.at_s > (call.ended_s or 0.0):
            continue
        place = (event.log, event.group, event.group_id)
        if isinstance(event, LeaseChange):
            if event.now_us:
                clock[event.log] = event.at_s - event.now_us / 1e6
            if event.what in (GRANTED, CONFIRMED):
                yield event.at_s, place, event.offset, None
        elif event.at_s >= call.invoked_s and event.log in clock:
            for offset, deliveries, _, not_before_us in event.failures:
                if not deliveries & REJECTED and keys.get((event.log, group, offset)) is None:
                    due_s = clock[event.log] + not_before_us / 1e6
                    yield event.at_s, place, offset, due_s + CLOCKS * max(0.0, due_s - event.at_s)


def charged_unstarted(facts: Facts) -> Iterator[Anomaly]:
    """A delivery that no worker was handed out counts as failed."""
    started: dict[Delivery, dict[int, float]] = defaultdict(dict)
    for job in facts.of("job"):
        started[_delivery(job)].setdefault(job.args["delivery"], job.invoked_s)
    for change in facts.history.leases:
        if change.what == GRANTED and change.alone:
            place = (change.log, change.group, change.generation, change.offset)
            started[place].setdefault(change.delivery, change.at_s)
    for before, now in steps(facts):
        known = (
            {offset: deliveries for offset, deliveries, *_ in before.failures} if same_generation(before, now) else {}
        )
        for offset, deliveries, *_ in now.failures:
            delivery = deliveries & ~REJECTED
            if delivery <= known.get(offset, 0) & ~REJECTED:
                continue
            at_s = started[now.log, now.group, now.generation, offset].get(delivery)
            if at_s is None or at_s > now.at_s:
                what = f"group {now.group}: delivery {delivery} counts as failed, and nobody began with it"
                yield seen(AnomalyKind.NOT_STARTED, what, now, offset)


# ---- what they have in common ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Leader:
    """The newest leader of a group in a partition, and the leases that it has to respect."""

    term: int
    began_s: float
    rejoin_s: float
    leases: dict[int, LeaseChange] = field(default_factory=dict)  # by offset
    inherited: list[LeaseChange] = field(default_factory=list)  # of the leader before it
    attached: set[str] = field(default_factory=set)  # sessions

    def held_by_others(self, change: LeaseChange) -> Iterator[tuple[int, LeaseChange]]:
        """Return the leases of other workers that are valid for this leader while it grants a record."""
        waits = change.at_s < self.began_s + self.rejoin_s * (1 - CLOCKS)
        before = [lease for lease in self.inherited if waits and lease.session not in self.attached]
        for lease in (*self.leases.values(), *before):
            if lease.session != change.session and lease.generation == change.generation:
                yield lease.offset, lease


def grants(facts: Facts) -> Iterator[tuple[Leader, LeaseChange]]:
    """Return each grant, if its leader is the newest one at that time, with the leader's leases before the grant."""
    leaders: dict[Place, Leader] = {}
    for change in facts.history.leases:
        place = (change.log, change.group, change.group_id)
        leader = leaders.get(place)
        if change.what == LEADS and (leader is None or change.term >= leader.term):
            held = list(leader.leases.values()) if leader is not None else []
            leaders[place] = Leader(change.term, change.at_s, change.rejoin_s, inherited=held)
        elif leader is None or change.term != leader.term:
            continue  # a deposed leader: its grants are not valid
        elif change.what == ATTACHED:
            leader.attached.add(change.session)
        elif change.what == ENDED:
            leader.leases.pop(change.offset, None)
        elif change.what in (GRANTED, CONFIRMED):
            if change.what == GRANTED:
                yield leader, change
            leader.leases[change.offset] = change


def steps(facts: Facts) -> Iterator[tuple[QueueChange, QueueChange]]:
    """Return each change of a group's state in a partition, after the one before it."""
    newest: dict[Place, QueueChange] = {}
    for now in facts.history.queues:
        before = newest.get(now.place)
        if before is not None:
            yield before, now
        newest[now.place] = now


def same_generation(before: QueueChange, now: QueueChange) -> bool:
    return before.generation == now.generation


def _burials(facts: Facts, topic: str, group: str) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
    """How often the burial of each record began, and ended with its dead letter, by (partition, offset)."""
    begun, ended = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for before, now in steps(facts):
        if now.log[0] == topic and now.group == group:
            begun.update((now.log[1], offset) for offset in now.burials if offset not in before.burials)
            ended.update((now.log[1], offset) for offset in before.burials if offset not in now.burials)
    return begun, ended


def _keys(facts: Facts) -> dict[tuple[Log, str, int], str]:
    """The keys of records of groups with keyed order, by (log, group, offset), as workers saw them."""
    return {
        ((job.args["topic"], job.args["partition"]), job.args["group"], job.args["offset"]): job.args["key"]
        for job in facts.of("job")
        if job.args["key"] is not None and job.args["keyed"]
    }


def _delivery(call: Call) -> Delivery:
    log = (call.args["topic"], call.args["partition"])
    return log, call.args["group"], call.args["generation"], call.args["offset"]


def seen(kind: AnomalyKind, what: str, now: QueueChange, offset: int) -> Anomaly:
    return Anomaly(kind, what, now.log, offsets=(offset,), times_s=(now.at_s,))
