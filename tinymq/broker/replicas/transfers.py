"""Moving a leadership by hand: who can take it, and waiting until somebody else leads. What is moved so stays moved
for as long as it is led there and the preferred broker is not started again (preferred_leaders.py)."""

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

LOOK_S = 0.01  # between two looks for the new leader
ANY = 0  # whoever would take over at once, the preferred broker first

logger = structlog.get_logger("tinymq.broker")


class TransferHost(Protocol):
    """What transferring asks of the Raft host (tinymq.raft.Host)."""

    @property
    def broker_id(self) -> int: ...
    @property
    def groups(self) -> Mapping[GroupId, Group]: ...
    def leader_of(self, group_id: GroupId) -> tuple[int, int] | None: ...
    def transfer(
        self, group_id: GroupId, to: int | None = None, *, within_s: float | None = None, manual: bool = False
    ) -> bool: ...


class Transfers:
    """Of what this broker leads. `within_s`: for how long writers may wait for a successor that does not take over."""

    def __init__(self, host: TransferHost, clock: Clock, within_s: float) -> None:
        self._host = host
        self._clock = clock
        self._within_s = within_s

    async def transfer(self, queue: QueueRecord, to: int, timeout_s: float) -> tuple[int, int]:
        """(leader, term) once `to` (ANY: whoever can) leads the partition; it may lead already.

        Raises NotLeader; InvalidRequest for a broker without a replica, NotReady for one that would not take over at
        once, and then nothing was done; DeadlineExceeded when it was tried, and it is led here as before;
        OutcomeUnknown when nobody is known to lead by then.
        """
        host, group = self._host, self._host.groups.get(queue.group)
        name = f"{queue.topic}/{queue.partition}"
        if to != ANY and not queue.has_replica(to):
            held = named("broker", (r.broker_id for r in queue.replicas))
            raise InvalidRequest(f"{name}: broker {to} holds no replica", hint=f"its replicas are on {held}")
        if group is None or not group.is_leader:
            leader = host.leader_of(queue.group)
            raise NotLeader(f"{name} is not led by broker {host.broker_id}", leader=leader[0] if leader else None)
        if to == host.broker_id:
            return to, group.term
        term, successor = group.term, self._successor(queue, group, to, name)
        until = self._clock.monotonic() + timeout_s
        logger.info("leader_moved_by_hand", group=str(group.id), to=successor)
        if not host.transfer(group.id, successor, within_s=min(timeout_s, self._within_s), manual=True):
            raise NotReady(f"{name}: broker {successor} cannot take over")
        while self._clock.monotonic() < until:
            await self._clock.sleep(LOOK_S)
            leader = host.leader_of(queue.group)
            if leader is not None and leader[0] != host.broker_id and leader[1] > term:
                return leader
            if group.is_leader and group.term == term and not group.is_transferring:
                break
        if group.is_leader:
            raise DeadlineExceeded(f"{name}: broker {successor} did not take over in time; it is led as before")
        raise OutcomeUnknown(f"{name}: broker {host.broker_id} gave it up, and nobody is known to lead yet")

    def _successor(self, queue: QueueRecord, group: Group, to: int, name: str) -> int:
        """Who is to take over, and would at once. Raises NotReady."""
        wanted = [r.broker_id for r in queue.replicas if r.broker_id != self._host.broker_id] if to == ANY else [to]
        reasons = {broker_id: group.transfer_obstacle(broker_id) for broker_id in wanted}
        for broker_id, reason in reasons.items():
            if not reason:
                return broker_id
        why = "; ".join(dict.fromkeys(reasons.values())) or "it has one replica"
        raise NotReady(f"{name} cannot be handed over: {why}")
