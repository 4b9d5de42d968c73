"""Mutants of the feature level: what a cluster may propose while some of its brokers run an older build (adr/0037).

All brokers of a simulated run have the same build and know the same level, so tests of the suite catch these mutants.
"""

from __future__ import annotations

from typing import Any

from tinymq.broker.cluster import feature_level as cluster_level
from tinymq.format import feature_level
from tinymq.format.feature_level import KNOWN_LEVEL
from tinymq.raft.net import handshake
from tinymq_chaos.mutants.mutant import Patches, mutant


def _nothing(*_: Any) -> None:
    """Replace a check by one that never fails."""


@mutant(
    "the feature level is the lowest that any member knows",
    test="tests/registry/test_feature_level_races.py::test_no_order_of_events_raises_the_level_over_an_older_build",
)
def levels_rise_over_older_members(p: Patches) -> None:
    p.replace(cluster_level.next_level, lambda level, members, heard: KNOWN_LEVEL)


@mutant(
    "a leader proposes only entries that all members know",
    test="tests/registry/test_feature_level.py::test_only_the_leader_raises_the_level_and_nothing_above_it_is_proposed",
)
def leaders_propose_what_members_do_not_know(p: Patches) -> None:
    p.replace(feature_level.check, _nothing)


@mutant(
    "peers refuse a broker that does not know the cluster's feature level",
    test="tests/raft/net/test_handshake.py::test_an_older_build_is_told_to_upgrade",
)
def older_builds_are_let_in(p: Patches) -> None:
    p.replace(feature_level.check_member, _nothing, within=[handshake])
