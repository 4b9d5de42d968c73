"""Mutants of stream groups: the cursors of groups, the coordinator's decisions, and the rules of a member."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tinymq.base.types import PartitionId
from tinymq.broker.coordinator import led_replicas, rules
from tinymq.broker.coordinator.rules import MemberHeartbeat
from tinymq.broker.coordinator.sessions import GroupSessions
from tinymq.broker.members.coordinator_replica import CoordinatorReplica
from tinymq.broker.members.group_members import Members, MembersDelta, Owned, changed
from tinymq.broker.state import cursor
from tinymq.client.group.fetched_records import TopicPartition
from tinymq.client.group.member_state import Beat, MemberState, Ownership
from tinymq_chaos.mutants.mutant import Patches, mutant, replaces

CURSORS = "tests/broker/state/test_group_cursors.py::test_"
RULES = "tests/broker/coordinator/test_rules.py::test_"
MEMBER = "tests/client/group/test_member_state.py::test_"
SERVICE = "tests/chaos/test_group_coordinator.py::test_"


# ---- where state lives --------------------------------------------------------------------------------------------


@mutant(
    "groups: a command of another kind or id is refused", test=f"{CURSORS}no_command_of_another_kind_moves_a_cursor"
)
def any_kind_moves_cursors(p: Patches) -> None:
    p.replace(cursor.check_identity, lambda present, name, kind, group_id: None)


@mutant(
    "groups: a group that is made again begins with a cursor of its own",
    test=f"{CURSORS}a_group_that_is_made_again_replaces_the_cursor_of_the_one_before",
)
@replaces(cursor.made)
def cursors_of_deleted_groups_stay(made: Any, cursor: Any, command: Any, bounds: Any, number: int) -> Any:
    return cursor if cursor is not None else made(cursor, command, bounds, number)


@mutant("groups: an epoch belongs to one session", test=f"{CURSORS}an_epoch_belongs_to_one_session")
def epochs_have_any_session(p: Patches) -> None:
    p.replace(cursor.check_session, lambda present, command: None)


@mutant(
    "groups: epochs go on above those that members have seen",
    test=f"{RULES}epochs_go_on_above_those_that_a_member_has_seen",
)
def epochs_that_members_saw_come_again(p: Patches) -> None:
    p.replace(rules.seen_epoch, lambda state, beat: state.counter)


@mutant(
    "groups: a member that comes back under its instance id gets epochs of its own",
    test=f"{RULES}another_life_of_a_member_gets_its_partitions_under_other_epochs",
)
@replaces(rules.heard)
def static_members_keep_their_epochs(heard: Any, state: Members, beat: MemberHeartbeat) -> MembersDelta:
    change: MembersDelta = heard(state, beat)
    same = {place: Owned(at.member, state.owned[place].epoch) for place, at in change.owned.items() if at is not None}
    return MembersDelta(change.members, {**change.owned, **same}, change.counter)


# ---- the coordinator ----------------------------------------------------------------------------------------------


@mutant(
    "stream groups: a partition has no new owner before the old one let it go",
    test=f"{RULES}a_partition_moves_in_three_steps_and_what_stays_is_not_touched",
)
@replaces(rules.rebalanced)
def partitions_move_at_once(
    rebalanced: Any, state: Members, places: Sequence[PartitionId], assign: Any
) -> MembersDelta:
    free = {place: at for place, at in state.owned.items() if not at.revoking}
    fewer = Members(state.group_id, state.revision, state.counter, state.members, free)
    change: MembersDelta = rebalanced(fewer, places, assign)
    return change


@mutant(
    "stream groups: an answered heartbeat is confirmed by a majority since it arrived",
    test=f"{SERVICE}a_coordinator_that_was_replaced_answers_no_heartbeat",
)
def heartbeats_are_not_confirmed(p: Patches) -> None:
    async def confirm(replica: CoordinatorReplica) -> None:
        replica.check_leading()

    p.replace(led_replicas.confirm, confirm)


@mutant(
    "stream groups: a coordinator has applied its own term's first entry",
    test=f"{SERVICE}a_coordinator_answers_once_it_has_applied_its_first_entry",
)
def coordinators_begin_too_early(p: Patches) -> None:
    def check_leading(self: CoordinatorReplica) -> None:
        if self.group.leader is None or not self.name.endswith(f"@{self.group.leader}"):
            real(self)

    real = CoordinatorReplica.check_leading
    p.replace(CoordinatorReplica.check_leading, check_leading)


@mutant(
    "stream groups: an assignment is announced when it is committed",
    test=f"{SERVICE}an_assignment_is_announced_when_it_is_committed",
)
def assignments_are_announced_uncommitted(p: Patches) -> None:
    async def commit(self: Any, name: str, state: Members, change: MembersDelta, *, remove: bool = False) -> None:
        answer = asyncio.ensure_future(real(self, name, state, change, remove=remove))
        await asyncio.sleep(0)
        shown = self.groups.get(name, Members())
        self._groups[name] = Members(
            state.group_id, shown.revision, shown.counter, *_parts(changed(state, change))
        )  # fmt: skip
        self.on_change(self, name)
        await answer

    real = CoordinatorReplica.commit
    p.replace(CoordinatorReplica.commit, commit)


def _parts(state: Members) -> tuple[Mapping[str, Any], Mapping[PartitionId, Owned]]:
    return state.members, state.owned


@mutant("stream groups: silence ends a session", test=f"{RULES}silence_ends_a_session_and_an_instance_id_has_longer")
def silent_members_stay(p: Patches) -> None:
    p.replace(rules.expired, lambda state, silent_s, rejoin_s, static_return_s: [])


@mutant(
    "stream groups: partitions wait for a member with an instance id",
    test=f"{RULES}silence_ends_a_session_and_an_instance_id_has_longer",
)
@replaces(rules.expired)
def static_members_are_not_waited_for(
    expired: Any, state: Members, silent_s: Any, rejoin_s: float, static_return_s: float
) -> list[str]:
    found: list[str] = expired(state, silent_s, rejoin_s, rejoin_s)
    return found


@mutant(
    "stream groups: the later session of an instance id ends the first",
    test=f"{RULES}of_two_sessions_of_one_instance_id_the_later_one_goes_on",
)
def replaced_sessions_come_back(p: Patches) -> None:
    p.replace(rules.check_not_replaced, lambda present, beat: None)


@mutant(
    "stream groups: a session that leaves does not end its successor",
    test=f"{RULES}of_two_sessions_of_one_instance_id_the_later_one_goes_on",
)
def any_session_ends_the_member(p: Patches) -> None:
    p.replace(rules.closed, lambda state, name, session: rules.left(state, [name]))


@mutant(
    "stream groups: what a list lacks is released",
    test=f"{RULES}what_is_assigned_again_has_a_new_epoch",
)
def absence_says_nothing(p: Patches) -> None:
    p.replace(rules.released, lambda state, beat: [])


@mutant(
    "stream groups: absence counts only for assignments that were taken",
    test=f"{RULES}absence_counts_only_for_assignments_that_were_taken",
)
def absence_counts_at_once(p: Patches) -> None:
    def released(state: Members, beat: MemberHeartbeat) -> list[PartitionId]:
        return [place for place, at in state.of(beat.name).items() if beat.owned.get(place) != at.epoch]

    p.replace(rules.released, released)


@mutant("stream groups: what is assigned again has a new epoch", test=f"{RULES}what_is_assigned_again_has_a_new_epoch")
@replaces(rules.rebalanced)
def epochs_are_assigned_again(
    rebalanced: Any, state: Members, places: Sequence[PartitionId], assign: Any
) -> MembersDelta:
    change: MembersDelta = rebalanced(state, places, assign)
    return MembersDelta(change.members, change.owned, 0)


@mutant(
    "stream groups: a list that comes after a later one says nothing",
    test=f"{RULES}a_late_heartbeat_of_a_member_that_left_says_nothing",
)
@replaces(GroupSessions.hear)
def late_lists_count(hear: Any, self: GroupSessions, beat: MemberHeartbeat, state: Members, now_s: float) -> bool:
    self.sessions.pop(beat.name, None)
    hear(self, beat, state, now_s)
    return True


@mutant(
    "stream groups: an owner that does not let go in time loses the partition",
    test=f"{RULES}an_owner_that_does_not_let_go_in_time_loses_the_partition",
)
def owners_keep_what_they_have(p: Patches) -> None:
    p.replace(GroupSessions.late, lambda self, state, now_s, revoke_s: {})


@mutant(
    "stream groups: members count as heard when their coordinator begins",
    test=f"{RULES}members_count_as_heard_when_their_coordinator_began",
)
def new_coordinators_heard_nobody(p: Patches) -> None:
    def silences(self: GroupSessions, now_s: float) -> Any:
        return lambda member: now_s - self.sessions[member].heard_s if member in self.sessions else now_s

    p.replace(GroupSessions.silences, silences)


# ---- the member ---------------------------------------------------------------------------------------------------


@mutant(
    "stream groups: a member hands out nothing once its time is over",
    test=f"{MEMBER}the_time_counts_from_when_the_heartbeat_was_sent",
)
def members_never_stop(p: Patches) -> None:
    p.replace(MemberState.alive, lambda self, now_s: True)


@mutant(
    "stream groups: a member's time counts from when its heartbeat was sent",
    test=f"{MEMBER}the_time_counts_from_when_the_heartbeat_was_sent",
)
@replaces(MemberState.answered)
def the_time_counts_from_the_answer(
    answered: Any, self: MemberState, beat: Beat, lost: Collection[tuple[bytes, int]], term: int, now_s: float
) -> list[TopicPartition]:
    found: list[TopicPartition] = answered(self, beat._replace(sent_s=now_s), lost, term, now_s)
    return found


@mutant("stream groups: a late answer gives nothing back", test=f"{MEMBER}what_the_time_took_away_stays_lost")
def late_answers_give_everything_back(p: Patches) -> None:
    p.replace(MemberState.expired, lambda self, now_s: [])


@mutant(
    "stream groups: an assignment is taken once",
    test=f"{MEMBER}what_the_time_took_away_stays_lost",
)
def assignments_are_taken_again(p: Patches) -> None:
    p.replace(MemberState.is_fresh, lambda self, each, before: each.place not in self.owned)


@mutant(
    "stream groups: a coordinator that was replaced assigns nothing",
    test=f"{MEMBER}a_coordinator_that_was_replaced_assigns_nothing",
)
def replaced_coordinators_assign(p: Patches) -> None:
    p.replace(MemberState.is_current, lambda self, term: True)


@mutant(
    "stream groups: what is let go is what was revoked",
    test=f"{MEMBER}a_partition_that_was_assigned_again_is_not_let_go_with_the_one_before",
)
@replaces(MemberState.let_go)
def any_grant_is_let_go(
    let_go: Any, self: MemberState, place: TopicPartition, grant: Ownership, *, fenced_at: int = 0
) -> None:
    let_go(self, place, self.owned.get(place, grant), fenced_at=fenced_at)
