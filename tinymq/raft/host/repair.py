"""The repair of damaged replicas: quarantine the damaged log, begin again as a learner, be listed again.

A replica asks the leader first. The leader checks that the group can lose it: a majority of listed replicas without the
one that asks confirms the leadership (`Group.read_index`) and could elect a leader after a power cut, and no other
replica is being repaired. So damage on a majority destroys nothing: those replicas stay quarantined as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from tinymq.base.clock import Clock
from tinymq.base.errors import InvalidRequest, NotLeader, NotReady, StorageError, TinymqError
from tinymq.base.retry import Backoff
from tinymq.base.types import GroupId, TopicId
from tinymq.log.engine.store import Store
from tinymq.raft.peers.peers import Peers
from tinymq.raft.peers.requests import Requests
from tinymq.raft.replica.group import Group, Role
from tinymq.raft.rules.membership import Replica

logger = structlog.get_logger("tinymq.raft")

METHOD = "raft.repair"
ASK_AGAIN_S = 1.0
ANSWER_S = 2.0  # how long the confirmation of the leadership may take
GRANTED_S = 30.0  # for this long, a repair that was granted and is not finished keeps other replicas from theirs
BACKOFF = Backoff(1.0, 60.0)  # between two repairs of one replica that is not listed in between
_GROUP_BYTES = 16


@dataclass(frozen=True, slots=True)
class RepairGrant:
    """The broker that may quarantine its replica's log, and the replica as CONFIG listed it then."""

    broker_id: int
    listed: Replica | None
    until: float

    def holds(self, group: Group, now: float) -> bool:
        """Does this grant still keep other replicas from a repair? It does until its own replica is listed again."""
        return now < self.until and group.membership.replica(self.broker_id) == self.listed


def pack_question(group: GroupId, broker_id: int) -> bytes:
    return group.topic_id + group.partition.to_bytes(4, "little") + broker_id.to_bytes(4, "little")


def parse_question(body: bytes) -> tuple[GroupId, int]:
    """Parse a request for a repair. Raises InvalidRequest."""
    if len(body) != _GROUP_BYTES + 8:
        raise InvalidRequest("not a request for a repair")
    group = GroupId(TopicId(body[:_GROUP_BYTES]), int.from_bytes(body[_GROUP_BYTES : _GROUP_BYTES + 4], "little"))
    return group, int.from_bytes(body[_GROUP_BYTES + 4 :], "little")


class Repairs:
    """Both ends of a repair: damaged replicas on this broker, and damaged replicas whose leader is on this broker."""

    def __init__(
        self, broker_id: int, store: Store, clock: Clock, peers: Peers, requests: Requests,
        groups: Mapping[GroupId, Group],
    ) -> None:  # fmt: skip
        self._broker_id = broker_id
        self._store = store
        self._clock = clock
        self._peers = peers
        self._requests = requests
        self._groups = groups
        self._tries: dict[GroupId, int] = {}  # by group: repairs since its replica was listed last
        self._grants: dict[GroupId, RepairGrant] = {}
        requests.serve(METHOD, self._grant)

    # ---- the broker of the damaged replica -----------------------------------------------------------------

    async def may_begin(self, group: Group) -> None:
        """Return when the leader says that the group can lose this replica, which then begins again.

        A replica that is damaged again before it was listed waits longer each time.
        """
        tries = self._tries.get(group.id, 0)
        if tries:
            await self._clock.sleep(BACKOFF.pause_s(tries))
        while not await self._may_go(group):
            await self._clock.sleep(ASK_AGAIN_S)
        self._tries[group.id] = tries + 1

    async def _may_go(self, group: Group) -> bool:
        """Ask the leader whether the group can lose us. If no leader is known, ask all members."""
        leader = self._peers.leader_of(group.id)
        members = [r.broker_id for r in group.membership.replicas] if leader is None else [leader[0]]
        for broker_id in members:
            if broker_id != self._broker_id and await self._asked(group.id, broker_id):
                return True
        return False

    async def _asked(self, group: GroupId, broker_id: int) -> bool:
        if not self._peers.alive(broker_id):
            return False
        try:
            await self._requests.ask(broker_id, METHOD, pack_question(group, self._broker_id), 2 * ANSWER_S)
        except TinymqError as error:
            logger.info("repair_waits", group=str(group), asked=broker_id, error=error.code, reason=error.message)
            return False
        return True

    async def finish(self, group: Group) -> bool:
        """Remove the quarantined log of a replica that is listed (again).

        It can go once the group has committed as many entries as that log was known to hold. False: it is still kept;
        call this again after `pause`.
        """
        self._tries.pop(group.id, None)
        try:
            return await self._store.remove_quarantined(group.id, group.commit_index)
        except StorageError as error:  # nothing depends on the quarantined log, so the replica continues
            logger.warning("quarantine_kept", group=str(group.id), error=error.code, reason=str(error))
            return False

    async def pause(self) -> None:
        await self._clock.sleep(BACKOFF.pause_s_max)

    # ---- the leader ----------------------------------------------------------------------------------------

    async def _grant(self, body: bytes) -> bytes:
        group_id, asker = parse_question(body)
        group = self._groups.get(group_id)
        if group is None or group.role is not Role.LEADER:
            raise NotLeader(f"{group_id} is not led here")
        if group.membership.replica(asker) is None:  # the group can lose an observer at any time
            group.replica.peer_alive(asker)
            return b""
        now = self._clock.monotonic()
        before = self._grants.get(group_id)
        if before is not None and before.broker_id != asker and before.holds(group, now):
            raise NotReady(f"{group_id}: the replica of broker {before.broker_id} is being repaired")
        self._grants[group_id] = grant = RepairGrant(asker, group.membership.replica(asker), now + GRANTED_S)
        try:
            await group.read_index(ANSWER_S)
            if not group.replica.can_lose(asker):
                raise NotReady(f"{group_id}: a replica that has just been listed has not stored that yet")
        except BaseException:
            if self._grants.get(group_id) is grant:
                del self._grants[group_id]
            raise
        group.replica.peer_alive(asker)  # a resting group would not notice the replica that begins again
        return b""

    def forget(self, group: GroupId) -> None:
        """Forget a group that is closed."""
        self._tries.pop(group, None)
        self._grants.pop(group, None)
