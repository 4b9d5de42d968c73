"""Who serves a range: replicas of the same host, then of the same rack, then the others, and the leader last. Pure.

Within a tier the client takes the one that answers better. A task that is tried again begins with another replica.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Replica(NamedTuple):
    """Where a partition can be read."""

    broker: int
    host: str  # of the address that clients use
    rack: str


Tiers = tuple[tuple[int, ...], ...]
"""Ids of brokers: those of a tier are tried before the next one."""


def tiers(
    replica: str, leader: int, replicas: Sequence[Replica], *, hosts: Collection[str], rack: str, attempt: int = 0
) -> Tiers | None:
    """Whom to ask, in which order. None: the leader, whoever that is by then.

    `replica` is one of options.REPLICAS; `leader` is 0 where nobody is known to lead; `hosts` and `rack` are those of
    this process; `attempt` is 0 for a task's first try: later ones begin with another replica.
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
    """0: the same host; 1: the same rack; 2: elsewhere."""
    if replica.host in hosts:
        return 0
    return 1 if rack and replica.rack == rack else 2


def _rotated(order: Sequence[tuple[int, ...]], attempt: int) -> Tiers:
    """The first try as it is. Later ones go through the replicas one by one, from the next one on: whatever made the
    first one fail may be the replica's, even if it looked well."""
    flat = [broker for tier in order for broker in tier]
    turn = attempt % len(flat) if flat else 0
    if turn == 0:
        return tuple(order)
    return tuple((broker,) for broker in flat[turn:] + flat[:turn])
