"""Answers of admin calls: what brokers say of topics, replicas, leaders, holds and scans is what there is.

Any broker answers most questions from what it knows, so an answer may be of the past while faults last. Two kinds of
statements are never true: one that contradicts the logs or the elections, and one that was never true before. In quiet
times an answer is also complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tinymq_chaos.checkers.bounds.stale_reads import end_at, ends_of
from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import WELL, Facts, has_sent_records
from tinymq_chaos.history import METADATA, Call, Log, Outcome

LEASE_SHARE = 0.8  # of a lease, counted from the call: the hold certainly exists for so long
RUNNING = "running"
COUNTED_MORE = 1 / 128  # by which a partition's bytes may be counted too high


def wrong_leaders(facts: Facts) -> Iterator[Anomaly]:
    """An answer names a leader of a term that another broker won."""
    won = {(led.log, led.term): led.broker for led in facts.history.leaders.values()}
    for call, log, term, leader in _named_leaders(facts):
        winner = won.get((log, term))
        if leader and winner is not None and winner != leader:
            yield _wrong(call, f"broker {leader} is said to lead term {term}, which broker {winner} won", log)


def _named_leaders(facts: Facts) -> Iterator[tuple[Call, Log, int, int]]:
    """Yield (call, log, term, broker) for every leader that an answer names."""
    for call in _answered(facts, "topics"):
        for topic in call.result:
            for partition, leader, epoch, _ in topic["partitions"]:
                yield call, (topic["topic"], partition), epoch, leader
    for call in _answered(facts, "status"):
        for replica in call.result["replicas"]:
            log = _log_of(replica)
            yield call, log, replica["term"], replica["leader"]
            if replica["role"] == "leader":
                yield call, log, replica["term"], replica["broker"]


def wrong_statuses(facts: Facts) -> Iterator[Anomaly]:
    """A replica reports indexes that contradict each other or the log."""
    revived = {revival.log for revival in facts.history.revivals}
    chains: dict[Log, dict[int, int]] = {}
    for call in _answered(facts, "status"):
        for replica in call.result["replicas"]:
            log = _log_of(replica)
            if log in revived or facts.is_gone(log):
                continue
            if log not in chains:
                chains[log] = _chain(facts, log)
            what = _wrong_status(replica, chains[log], facts.committed_by(log, call))
            if what:
                yield _wrong(call, f"broker {replica['broker']}: {what}", log)


def _wrong_status(replica: dict[str, Any], chain: dict[int, int], committed: int | None) -> str:
    """Return how a replica's report is wrong; "" if it is not. `chain` has the checksums of the log's entries."""
    commit, crc = replica["commit"], replica["chain_crc"]
    if replica["role"] in WELL and commit > replica["last"]:
        return f"commit index {commit} lies behind the last entry, {replica['last']}"
    if replica["durable"] > replica["last"]:
        return f"durable index {replica['durable']} lies behind the last entry, {replica['last']}"
    if replica["log_start"] > replica["high_watermark"]:
        return f"log start {replica['log_start']} lies behind the high watermark, {replica['high_watermark']}"
    if committed is not None and replica["high_watermark"] > committed:
        return f"high watermark {replica['high_watermark']} lies behind the commit, {committed}"
    if crc and commit in chain and chain[commit] != crc:
        return f"checksum {crc:08x} of entry {commit}, and the log has {chain[commit]:08x}"
    return ""


def _chain(facts: Facts, log: Log) -> dict[int, int]:
    """Return the header checksums of a log's entries by index."""
    replicas = [replica for replica in facts.replicas.get(log, ()) if replica.role in WELL]
    return {e.index: e.header_crc for r in replicas for e in r.entries if e.index <= r.commit_index}


def missing_replicas(facts: Facts) -> Iterator[Anomaly]:
    """In quiet times, `cluster status` lacks a broker or a replica, or names another leader of the metadata."""
    brokers, changing = facts.history.brokers, _changing(facts)
    for call in _answered(facts, "status") if brokers else ():
        if not facts.quiet(call):
            continue
        states = {broker: (address, state) for broker, address, state in call.result["brokers"]}
        for broker in sorted({*brokers, *states}):
            due = (brokers.get(broker), RUNNING)
            if states.get(broker) != due:
                yield _wrong(call, f"broker {broker} is reported as {states.get(broker)}, and is {due}", METADATA)
        listed = {(_log_of(r), r["broker"]) for r in call.result["replicas"]}
        for log, replicas in facts.replicas.items():
            for replica in replicas:
                if (log, replica.broker) not in listed and log[0] not in changing:
                    yield _wrong(call, f"the replica of broker {replica.broker} is missing", log)
        leaders = _leaders_during(facts, METADATA, call)
        if leaders and call.result["metadata_leader"] not in leaders:
            what = f"broker {call.result['metadata_leader']} is said to lead, and {sorted(leaders)} led"
            yield _wrong(call, what, METADATA)


def _leaders_during(facts: Facts, log: Log, call: Call) -> set[int]:
    spans = [led for led in facts.history.leaders.values() if led.log == log and led.at_s <= (call.ended_s or 0.0)]
    return {led.broker for led in spans if led.until_s is None or led.until_s >= call.invoked_s}


def _changing(facts: Facts) -> set[str]:
    """Return the topics that change after the faults: created, deleted, or with partitions that come and go; and those
    that brokers make, which lists leave out or which may be new."""
    own = {log[0] for log in facts.replicas if log != METADATA and not has_sent_records(log)}
    names = {c.args["name"] for c in facts.of("create_topic", "delete_topic")}
    changed = {c.args["topic"] for c in facts.of("add_partition", "delete_partition")}
    return changed | own | {log[0] for log in facts.replicas if log[0].partition("#")[0] in names}


def wrong_topics(facts: Facts) -> Iterator[Anomaly]:
    """A described topic has other replicas or settings than it can have."""
    altered = {(c.args["topic"], name) for c in facts.of("alter_topic") for name in c.args["settings"]}
    settled: dict[tuple[str, str], str] = {}
    changing, names = _changing(facts), {c.args["name"] for c in facts.of("create_topic", "delete_topic")}
    for call in _answered(facts, "topics"):
        for topic in call.result:
            key = topic["topic"]
            for partition, leader, _, replicas in topic["partitions"]:
                what = _wrong_partition(leader, replicas, topic["replication"])
                # A topic that was made just now elects its first leaders. It may be gone when the run ends.
                if not leader and facts.quiet(call) and key not in changing and key.partition("#")[0] not in names:
                    what = what or "no leader is known in quiet times"
                if what:
                    yield _wrong(call, what, (key, partition))
            given = facts.history.topics.get(key, {})
            for name, value in topic["settings"].items():
                before = settled.setdefault((key, name), given.get(name, value))
                if value != before and (key, name) not in altered:
                    yield _wrong(call, f"{name} is {value}, was {before}, and nobody altered it", (key, 0))


def _wrong_partition(leader: int, replicas: list[int], due: int) -> str:
    if len({*replicas}) != due or len(replicas) != due:
        return f"has replicas {replicas}, and {due} are due"
    return f"broker {leader} leads, and the replicas are {replicas}" if leader and leader not in replicas else ""


def wrong_partitions(facts: Facts) -> Iterator[Anomaly]:
    """A described topic lacks a partition that was added before, or has one that was deleted before."""
    added = [(c, (c.args["topic"], c.result)) for c in facts.of("add_partition") if c.outcome is Outcome.OK]
    deleted = [(c, (c.args["topic"], c.args["partition"])) for c in facts.of("delete_partition")]
    maybe_deleted = {log for call, log in deleted if call.outcome is not Outcome.FAILED}
    for look in _answered(facts, "topics"):
        for topic in look.result:
            listed = {(topic["topic"], number) for number, *_ in topic["partitions"]}
            for call, log in added:
                if log[0] == topic["topic"] and _before(call, look) and log not in listed | maybe_deleted:
                    yield _wrong(look, "is missing, and was added before", log)
            for call, log in deleted:
                if call.outcome is Outcome.OK and _before(call, look) and log in listed:
                    yield _wrong(look, "is there, and was deleted before", log)


def wrong_brokers(facts: Facts) -> Iterator[Anomaly]:
    """A broker is listed that does not exist, or at another address; or one is missing in quiet times."""
    brokers = facts.history.brokers
    for call in _answered(facts, "brokers") if brokers else ():
        listed: dict[int, str] = dict(call.result)
        wrong = {broker: address for broker, address in listed.items() if brokers.get(broker) != address}
        missing = brokers.keys() - listed.keys() if facts.quiet(call) else ()
        if wrong or missing:
            yield _wrong(call, f"{listed} are listed, and there are {brokers}", METADATA)


def levels_back(facts: Facts) -> Iterator[Anomaly]:
    """The feature level falls."""
    known: list[tuple[float, int]] = []
    for call in _answered(facts, "feature_level"):
        before = max((level for ended_s, level in known if ended_s <= call.invoked_s), default=0)
        if call.result < before:
            yield _wrong(call, f"the feature level is {call.result}, and was {before}", METADATA)
        known.append((call.ended_s or 0.0, call.result))


def wrong_sizes(facts: Facts) -> Iterator[Anomaly]:
    """A partition keeps more records or bytes than can exist, or in quiet times fewer than were acknowledged."""
    if facts.heads_removed:
        return
    ends = ends_of(facts)
    for call in _answered(facts, "kept"):
        for partition, records, size in call.result:
            log = call.args["topic"], partition
            most, least = facts.committed_by(log, call), end_at(ends, log, call.invoked_s) if facts.quiet(call) else 0
            if most is None:
                continue
            if not least <= records <= most:
                yield _wrong(call, f"{records} records are kept, and there are {least} to {most}", log)
                continue
            heaviest, lightest = (facts.weight(log, 0, end, call.invoked_s) for end in (most, least))
            if heaviest is not None and lightest is not None:
                most_bytes = heaviest * (1 + COUNTED_MORE)
                if not lightest <= size <= most_bytes:
                    yield _wrong(call, f"{size} bytes are kept, and there are {lightest} to {most_bytes:.0f}", log)


def wrong_holds(facts: Facts) -> Iterator[Anomaly]:
    """A hold is listed that nobody made, or in quiet times one is missing."""
    made = {_hold_of(call): call for call in facts.of("hold")}
    released = {_hold_of(call) for call in facts.of("release")}
    for call in _answered(facts, "holds"):
        topic = call.args["topic"]
        listed = {(topic, partition, hold): offset for partition, hold, offset in call.result}
        for place, offset in listed.items():
            hold = made.get(place)
            if hold is None or hold.args["offset"] != offset or hold.invoked_s > (call.ended_s or 0.0):
                yield _wrong(call, f"a hold from offset {offset} is listed that nobody made", place[:2])
        for place, hold in made.items() if facts.quiet(call) else ():
            ends_s = hold.invoked_s + LEASE_SHARE * hold.args["lease_s"]
            lives = hold.outcome is Outcome.OK and _before(hold, call) and (call.ended_s or 0.0) < ends_s
            if place[0] == topic and lives and place not in released | listed.keys():
                yield _wrong(call, f"the hold from offset {hold.args['offset']} is missing", place[:2])


def wrong_scans(facts: Facts) -> Iterator[Anomaly]:
    """A scan returns another number of records than asked for, or in quiet times its brokers count fewer."""
    for call in _answered(facts, "scan"):
        names, served, listed = call.result
        log = call.args["topic"], call.args["partition"]
        if len(names) != call.args["end"]:
            yield _wrong(call, f"{len(names)} records, and {call.args['end']} were asked for", log)
        elif facts.quiet(call) and not served == listed >= len(names):
            yield _wrong(call, f"{len(names)} records were sent, {served} are counted, {listed} listed", log)


def _hold_of(call: Call) -> tuple[str, int, str]:
    return call.args["topic"], call.args["partition"], call.args["hold"]


def _log_of(replica: dict[str, Any]) -> Log:
    return replica["topic"], replica["partition"]


def _answered(facts: Facts, kind: str) -> Iterator[Call]:
    return (call for call in facts.of(kind) if call.outcome is Outcome.OK)


def _before(call: Call, later: Call) -> bool:
    return call.ended_s is not None and call.ended_s <= later.invoked_s


def _wrong(call: Call, what: str, log: Log) -> Anomaly:
    return Anomaly.of(AnomalyKind.WRONG_ANSWER, f"{call.kind}: {what}", log, call)
