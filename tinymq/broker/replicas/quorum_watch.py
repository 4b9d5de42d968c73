"""Automatic quorum recovery: resumes groups that lost a majority of their replicas to a risk that their topic accepts.

Every broker checks its own groups twice a second, and asks all members of a group that is stalled. The broker whose log
survives prepares the recovery and leads afterwards; the others wait. raft/rules/automatic_recovery.py has the decision,
and says why it is safe. The topic's present setting decides only how soon the members are asked: groups that take no
risk now rarely took one before, and there may be many of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from google.protobuf.message import DecodeError

from tinymq.base.clock import Clock
from tinymq.base.errors import InvalidRequest, NotReady, TinymqError
from tinymq.base.types import METADATA_GROUP, GroupId
from tinymq.broker.replicas.recovery import RecoveryHost, ask_report
from tinymq.broker.replicas.survey_wire import group_from_wire, report_from_wire, report_to_wire
from tinymq.proto import tinymq_pb2 as pb
from tinymq.raft import Group
from tinymq.raft.rules.automatic_recovery import plan_recovery
from tinymq.raft.rules.quorum_loss import QuorumLost, ReplicaReport

METHOD = "revive.promise"  # asked of other brokers: take part in no lower term from now on
CHECK_S = 0.5
LOOKS_MIN = 4  # checks before the members of a group without a risk are asked; then after 8, 16, …
LOOKS_MAX = 120  # the longest time between two questions, in checks
PROMISE_S = 2.0
AT_ONCE_MAX = 16  # groups whose members are asked side by side
FIRST_ENTRY = 1  # a log that ends there is empty

logger = structlog.get_logger("tinymq.broker")

Seen = tuple[int, int]  # term and commit index of a stalled group


@dataclass(frozen=True, slots=True)
class StalledGroup:
    """A group that makes no progress."""

    seen: Seen
    looks: int = 0  # further checks that found it unchanged, with all its brokers alive

    def is_due(self, *, risky_now: bool) -> bool:
        """Whether this check asks the group's members."""
        if risky_now:
            return self.looks >= 1
        power_of_two = self.looks >= LOOKS_MIN and self.looks & (self.looks - 1) == 0
        return power_of_two or (self.looks > 0 and self.looks % LOOKS_MAX == 0)


class QuorumWatch:
    """The watch of one broker over the groups that it holds. On the loop."""

    def __init__(self, broker_id: int, host: RecoveryHost, clock: Clock) -> None:
        self.recovered = 0  # groups that this broker resumed
        self.lost = 0  # those of them that lost all records
        self._broker_id = broker_id
        self._host = host
        self._clock = clock
        self._stalled: dict[GroupId, StalledGroup] = {}  # stalled at the last check
        self._task: asyncio.Task[None] | None = None
        host.serve(METHOD, self._promise)

    def start(self) -> asyncio.Task[None]:
        """Start checking. The task ends with `stop`, or by a broken invariant."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self._task

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(CHECK_S)
            stuck = self.stuck_groups()
            for first in range(0, len(stuck), AT_ONCE_MAX):
                await asyncio.gather(*(self._try(group) for group in stuck[first : first + AT_ONCE_MAX]))

    def stuck_groups(self) -> list[Group]:
        """The stalled groups whose members this check asks. The metadata group takes no risk, and is never asked."""
        stalled = {
            group.id: self._again(group, seen)
            for group in self._host.groups.values()
            if group.id != METADATA_GROUP and (seen := standing_still(group)) is not None
        }
        self._stalled = stalled
        groups = [self._host.groups[group_id] for group_id in stalled]
        return [group for group in groups if stalled[group.id].is_due(risky_now=group.log.config.takes_risks)]

    def _again(self, group: Group, seen: Seen) -> StalledGroup:
        before = self._stalled.get(group.id)
        if before is None or before.seen != seen or not self.all_alive(_members(group)):
            return StalledGroup(seen)
        return StalledGroup(seen, before.looks + 1)

    def all_alive(self, members: Sequence[int]) -> bool:
        """Return whether every broker of `members` is alive as far as this one knows."""
        return all(broker_id == self._broker_id or self._host.alive(broker_id) for broker_id in members)

    async def _try(self, group: Group) -> None:
        try:
            await self._recover(group)
        except TinymqError as error:  # a member is silent, or the group has a leader again: the next check decides
            logger.info("quorum_recovery_delayed", group=str(group.id), error=error.code, reason=error.message)

    async def _recover(self, group: Group) -> None:
        members, risky_now = _members(group), group.log.config.takes_risks
        loss = plan_recovery(await self.collect_reports(group.id, members), members, risky_now=risky_now)
        if loss is None or loss.survivor.broker_id != self._broker_id:
            return
        # Second phase: each member promises to join no lower term, and reports again. The second reports show every
        # change since the first ones, and a promise cannot be taken back.
        promised = await asyncio.gather(
            *(self.ask_promise(b, group.id, loss.term) for b in members if b != self._broker_id)
        )
        mine = await group.promise_term(loss.term, PROMISE_S)
        self._force_leadership(group, loss, plan_recovery([mine, *promised], members, risky_now=risky_now))

    def _force_leadership(self, group: Group, loss: QuorumLost, promised: QuorumLost | None) -> None:
        """Lead the group, if the reports that came with the promises lead to the same decision as the first reports.

        This broker's own report is still true: it was made last, and there was no await since.
        """
        if self._host.groups.get(group.id) is not group or promised is None:
            raise NotReady(f"{group.id} resumed without a recovery")
        if promised.survivor.broker_id != self._broker_id or promised.replicas != loss.replicas:
            raise NotReady(f"{group.id} has changed since it was examined")
        group.force_leadership(loss.term, loss.replicas)
        self.recovered += 1
        last_index = promised.survivor.last_index
        if last_index <= FIRST_ENTRY:
            self.lost += 1
            logger.warning("memory_topic_lost", group=str(group.id), term=loss.term)
        else:
            logger.warning("quorum_recovered", group=str(group.id), term=loss.term, last_index=last_index)

    async def collect_reports(self, group: GroupId, members: Sequence[int]) -> list[ReplicaReport]:
        """The reports of all members. Raises NotReady if a member does not answer."""
        if not self.all_alive(members):
            raise NotReady(f"not all of brokers {members} are alive")
        reports = await asyncio.gather(*(ask_report(self._host, broker_id, group) for broker_id in members))
        return [report for report in reports if report is not None]

    # ---- promises ------------------------------------------------------------------------------------------

    async def ask_promise(self, broker_id: int, group: GroupId, term: int) -> ReplicaReport:
        """Ask a member to promise that it takes part in no term below `term`; return its report."""
        question = pb.SurveyedReplica(topic_id=group.topic_id, partition=group.partition, term=term)
        answer = await self._host.request(broker_id, METHOD, question.SerializeToString(), PROMISE_S)
        return report_from_wire(_parse(answer))

    async def _promise(self, question: bytes) -> bytes:
        request = _parse(question)
        group = self._host.groups.get(group_from_wire(request.topic_id, request.partition))
        if group is None or group.id == METADATA_GROUP:
            raise NotReady("no such group is open here, or it is the metadata group, which an operator recovers")
        return report_to_wire(await group.promise_term(request.term, PROMISE_S)).SerializeToString()


def _members(group: Group) -> list[int]:
    return [replica.broker_id for replica in group.membership.replicas]


def standing_still(group: Group) -> Seen | None:
    """The term and commit index of a group that makes no progress; None: the group is not stalled.

    A follower's group is stalled without a leader. A leader's group is stalled while entries wait for their commit.
    """
    if group.failure is not None:
        return None
    waits = group.commit_index < group.log.last_index if group.is_leader else group.leader is None
    return (group.term, group.commit_index) if waits else None


def _parse(body: bytes) -> pb.SurveyedReplica:
    try:
        return pb.SurveyedReplica.FromString(body)
    except DecodeError as error:
        raise InvalidRequest(f"not a report: {error}") from None
