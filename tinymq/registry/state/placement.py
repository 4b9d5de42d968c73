"""Where the replicas of new partitions go: even over brokers and, where brokers name racks, over racks.

Pure and deterministic: every replica of the registry places alike. Greedy, least loaded first; a topic is even
in itself before it is even with the others, so that its leaders spread however lopsided the cluster is. The
partitions of a broker that dies spread over the others, too: who is second in line takes turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tinymq.registry.state.values import BrokerRecord, QueueRecord, ReplicaPlace


def place(
    brokers: Sequence[BrokerRecord],
    existing: Iterable[QueueRecord],
    partitions: int,
    replication_factor: int,
    own: Iterable[QueueRecord] = (),
) -> list[tuple[ReplicaPlace, ...]]:
    """Replicas for each new partition, the preferred leader first. Needs at least `replication_factor` brokers.

    `existing`: all partitions there are; `own`: those among them that are of the same topic.
    """
    assert 1 <= replication_factor <= len(brokers), (replication_factor, len(brokers))
    leads_total: Counter[int] = Counter()
    holds_total: Counter[int] = Counter()
    for queue in existing:
        leads_total[queue.replicas[0].broker_id] += 1
        holds_total.update(r.broker_id for r in queue.replicas)
    leads: Counter[int] = Counter()
    holds: Counter[int] = Counter()
    heirs: Counter[tuple[int, int]] = Counter()  # by (leader, second in line): replicas stand in their order
    for queue in own:
        ids = [r.broker_id for r in queue.replicas]
        leads[ids[0]] += 1
        holds.update(ids)
        heirs.update((ids[0], heir) for heir in ids[1:2])
    placed = []
    for _ in range(partitions):
        leader = min(
            brokers, key=lambda b: (leads[b.broker_id], holds[b.broker_id], leads_total[b.broker_id], b.broker_id)
        )
        chosen = [leader]
        while len(chosen) < replication_factor:
            racks = {b.rack for b in chosen if b.rack}
            chosen.append(
                min(
                    (b for b in brokers if b not in chosen),
                    key=lambda b: (b.rack in racks, holds[b.broker_id], holds_total[b.broker_id], b.broker_id),
                )
            )
        for broker in chosen:
            holds[broker.broker_id] += 1
            holds_total[broker.broker_id] += 1
        chosen[1:] = sorted(chosen[1:], key=lambda b: (heirs[leader.broker_id, b.broker_id], b.broker_id))
        heirs.update((leader.broker_id, b.broker_id) for b in chosen[1:2])
        leads[leader.broker_id] += 1
        leads_total[leader.broker_id] += 1
        placed.append(tuple(ReplicaPlace(b.broker_id, b.incarnation) for b in chosen))
    return placed
