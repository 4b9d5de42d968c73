"""Chooses the replicas of a range: same host first, then same rack, then the others, and the leader last. Pure.

Within a tier the client prefers the replica that answers faster. A task that Spark retries begins with another replica.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Replica(NamedTuple):
    """One replica of a partition."""

    broker: int
    host: str  # of the address that clients use
    rack: str


Tiers = tuple[tuple[int, ...], ...]
"""Ids of brokers. All brokers of a tier are tried before the next tier."""


def tiers(
    replica: str, leader: int, replicas: Sequence[Replica], *, hosts: Collection[str], rack: str, attempt: int = 0
) -> Tiers | None:
    """Return the brokers to read from, in order. None: the leader at the time of the read.

    `replica` is one of options.REPLICAS. `leader` is 0 if it is unknown. `hosts` and `rack` are those of this process.
    `attempt` is 0 for the first attempt of a task. Later attempts begin with another replica.
    """
    if replica == "leader" or not replicas:
        return None
    if replica == "any":
        return _rotated([tuple(each.broker for each in replicas)], attempt)
    asked = [each for each in replicas if replica == "nearest" or each.broker != leader]
    found: list[list[int]] = [[], [], []]
    for each in asked:
        found[_distance(each, hosts, rack)].append(each.broker)
    order = _rotated([tuple(tier) for tier in found if tier], attempt)
    last: Tiers = () if len(asked) == len(replicas) else ((leader,),)
    return (*order, *last)


def _distance(replica: Replica, hosts: Collection[str], rack: str) -> int:
    """Return 0 for the same host, 1 for the same rack, and 2 otherwise."""
    if replica.host in hosts:
        return 0
    return 1 if rack and replica.rack == rack else 2


def _rotated(order: Sequence[tuple[int, ...]], attempt: int) -> Tiers:
    """Return the tiers for an attempt. Later attempts try the replicas one by one, and begin with the next one, because
    the replica of the first attempt may be the cause of its failure."""
    flat = [broker for tier in order for broker in tier]
    turn = attempt % len(flat) if flat else 0
    if turn == 0:
        return tuple(order)
    return tuple((broker,) for broker in flat[turn:] + flat[:turn])
