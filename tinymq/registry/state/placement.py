"""Places the replicas of new partitions evenly over brokers and, where brokers name racks, over racks.

Pure and deterministic: every replica of the registry places them alike. The rule is greedy and takes the least loaded
broker first. A topic is balanced in itself before it is balanced with the others, so that its leaders spread even if
the cluster is lopsided. The second replicas take turns, so that the leaderships of a dead broker spread as well.
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
    """Choose replicas for each new partition, the preferred leader first, from `replication_factor` brokers or more.

    `existing` are all partitions of the cluster. `own` are those of the same topic.
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
        # Another rack counts more than an even load: a rack fails as a whole.
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
        # The second replica is likely to lead if the leader dies, so this pair is the rarest one with that leader.
        chosen[1:] = sorted(chosen[1:], key=lambda b: (heirs[leader.broker_id, b.broker_id], b.broker_id))
        heirs.update((leader.broker_id, b.broker_id) for b in chosen[1:2])
        leads[leader.broker_id] += 1
        leads_total[leader.broker_id] += 1
        placed.append(tuple(ReplicaPlace(b.broker_id, b.incarnation) for b in chosen))
    return placed
