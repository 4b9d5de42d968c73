"""Moves a leadership for an operator: chooses the successor, and waits until another broker leads.

A leadership that was moved this way stays where it is until the preferred broker restarts (preferred_leaders.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import structlog

from tinymq.base.clock import Clock
from tinymq.base.errors import DeadlineExceeded, InvalidRequest, NotLeader, NotReady, OutcomeUnknown
from tinymq.base.quantity import named
from tinymq.base.types import GroupId
from tinymq.raft import Group
from tinymq.registry.state.values import QueueRecord

LOOK_S = 0.01  # between two checks for the new leader, or for a broker that can take over
PATIENCE_S = 1.0  # for a broker that cannot take over yet: a new leader has not heard all its followers
ANY = 0  # any replica that can take over at once, the preferred broker first

logger = structlog.get_logger("tinymq.broker")


class TransferHost(Protocol):
    """The part of the Raft host that transfers use (tinymq.raft.Host)."""

    @property
    def broker_id(self) -> int: ...
    @property
    def groups(self) -> Mapping[GroupId, Group]: ...
    def leader_of(self, group_id: GroupId) -> tuple[int, int] | None: ...
    def transfer(
        self, group_id: GroupId, to: int | None = None, *, within_s: float | None = None, manual: bool = False
    ) -> bool: ...


class Transfers:
    """Transfers of the leaderships of this broker.

    Writers wait during a transfer. `within_s` bounds that wait if the successor does not take over.
    """

    def __init__(self, host: TransferHost, clock: Clock, within_s: float) -> None:
        self._host = host
        self._clock = clock
        self._within_s = within_s

    async def transfer(self, queue: QueueRecord, to: int, timeout_s: float) -> tuple[int, int]:
        """Move the leadership to `to`, or to ANY replica, and return (leader, term) once it leads.

        Raises, with nothing done: NotLeader, InvalidRequest for a broker without a replica, NotReady if no broker can
        take over within PATIENCE_S. DeadlineExceeded: the transfer failed, and this broker still leads. OutcomeUnknown:
        no leader is known yet.
        """
        host, group = self._host, self._host.groups.get(queue.group)
        name = f"{queue.topic}/{queue.partition}"
        if to != ANY and not queue.has_replica(to):
            holders = named("broker", (r.broker_id for r in queue.replicas))
            raise InvalidRequest(f"{name}: broker {to} holds no replica", hint=f"its replicas are on {holders}")
        if group is None or not group.is_leader:
            raise self._not_leader(queue)
        if to == host.broker_id:
            return to, group.term
        deadline_s = self._clock.monotonic() + timeout_s
        successor = await self._wait_for_successor(queue, group, to, min(PATIENCE_S, timeout_s / 2))
        term = group.term
        logger.info("leader_transfer_ordered", group=str(group.id), to=successor)
        if not host.transfer(group.id, successor, within_s=min(timeout_s, self._within_s), manual=True):
            raise NotReady(f"{name}: broker {successor} cannot take over")
        while self._clock.monotonic() < deadline_s:
            await self._clock.sleep(LOOK_S)
            leader = host.leader_of(queue.group)
            if leader is not None and leader[0] != host.broker_id and leader[1] > term:
                return leader
            # Still the leader of the same term, and no longer transferring: the successor did not take over.
            if group.is_leader and group.term == term and not group.is_transferring:
                break
        if group.is_leader:
            raise DeadlineExceeded(f"{name}: broker {successor} did not take over in time; it is led as before")
        raise OutcomeUnknown(f"{name}: broker {host.broker_id} gave it up, and no new leader is known yet")

    def _not_leader(self, queue: QueueRecord) -> NotLeader:
        leader = self._host.leader_of(queue.group)
        message = f"{queue.topic}/{queue.partition} is not led by broker {self._host.broker_id}"
        return NotLeader(message, leader=leader[0] if leader else None)

    async def _wait_for_successor(self, queue: QueueRecord, group: Group, to: int, patience_s: float) -> int:
        """A broker that can take over at once. Raises NotReady if there is none for `patience_s`, or NotLeader."""
        give_up_s = self._clock.monotonic() + patience_s
        while True:
            try:
                return self._successor(queue, group, to)
            except NotReady:
                if self._clock.monotonic() >= give_up_s:
                    raise
            await self._clock.sleep(LOOK_S)
            if not group.is_leader:
                raise self._not_leader(queue)

    def _successor(self, queue: QueueRecord, group: Group, to: int) -> int:
        """A broker that can take over at once. Raises NotReady if there is none."""
        candidates = [r.broker_id for r in queue.replicas if r.broker_id != self._host.broker_id] if to == ANY else [to]
        reasons = {broker_id: group.transfer_obstacle(broker_id) for broker_id in candidates}
        for broker_id, reason in reasons.items():
            if not reason:
                return broker_id
        why = "; ".join(dict.fromkeys(reasons.values())) or "it has one replica"
        raise NotReady(f"{queue.topic}/{queue.partition} cannot be handed over: {why}")
