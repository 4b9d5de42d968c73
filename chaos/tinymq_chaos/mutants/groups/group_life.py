"""Mutants of rules of both kinds of groups: how they are made and deleted, and where members are kept."""

from __future__ import annotations

from typing import Any

from tinymq.broker.groups import groups
from tinymq.broker.groups.groups import Errand, Groups
from tinymq.broker.partition.group_gate import GroupGate
from tinymq_chaos.mutants.mutant import Patches, mutant

LIFE = "tests/chaos/test_sim_groups.py::test_"


def _not_everywhere(p: Patches, spared: Errand) -> None:
    """Have a step not wait for all partitions."""

    async def everywhere(self: Groups, group: Any, deadline_s: float, errand: Errand) -> int:
        return 0 if errand is spared else await real(self, group, deadline_s, errand)

    real = Groups.everywhere
    p.replace(Groups.everywhere, everywhere)


@mutant("groups: a group exists when its cursor is in every partition", test=f"{LIFE}a_group_is_everywhere_when_made")
def groups_exist_at_once(p: Patches) -> None:
    _not_everywhere(p, Errand.MAKE)


@mutant(
    "groups: the name of a deleted group is taken until every partition has confirmed",
    test=f"{LIFE}a_group_is_nowhere_when_deleted",
)
def groups_are_gone_at_once(p: Patches) -> None:
    _not_everywhere(p, Errand.DROP)


@mutant(
    "groups: an added partition takes no write before it has the cursors of its topic's groups",
    test="tests/broker/partition/test_group_gate.py::test_an_empty_partition_waits_for_the_cursors_of_its_groups",
)
def partitions_wait_for_no_cursor(p: Patches) -> None:
    p.replace(GroupGate.check, lambda self: None)


@mutant(
    "groups: their coordinators survive what the metadata survives",
    test=f"{LIFE}coordinators_have_as_many_replicas_as_the_metadata",
)
def coordinators_have_one_replica(p: Patches) -> None:
    p.set(groups, "COORDINATOR_REPLICAS", 1)
