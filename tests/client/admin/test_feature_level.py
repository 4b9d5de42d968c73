"""The feature level as a client sees it: in a mixed cluster, with brokers that do not answer, and over the wire."""

from __future__ import annotations

import json

import pytest

from tinymq.base.errors import BrokerUnreachable, InvalidRequest, UnsupportedVersion
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.client.admin.feature_level import read
from tinymq.format.feature_level import KNOWN_LEVEL
from tinymq.proto import tinymq_pb2 as pb
from tinymq.testing import Cluster


def reply(broker_id: int, level: int, held: int = 0, *announced: int) -> pb.FeatureLevelReply:
    members = [
        pb.LevelMember(broker_id=n, announced=each, registered=True, voter=True, replicas=n)
        for n, each in enumerate(announced, 1)
    ]
    return pb.FeatureLevelReply(broker_id=broker_id, level=level, known=2, held=held, members=members)


def test_a_mixed_cluster_names_the_members_it_waits_for() -> None:
    old = UnsupportedVersion("h:2: Method not found!")
    found = read({1: reply(1, 1, 1, 1, 1, 2), 2: old, 3: BrokerUnreachable("nobody there")})
    assert (found.level, found.waits_for) == (1, (1, 2))
    assert [(m.known, m.held, m.replicas) for m in found.members] == [(2, 1, 1), (1, 0, 2), (None, 0, 3)]
    assert found.silent == {3: "nobody there"}


def test_nothing_waits_while_no_member_knows_a_higher_level() -> None:
    found = read({1: reply(1, 2, 0, 2, 2), 2: BrokerUnreachable("nobody there")})
    assert (found.level, found.can_rise, found.waits_for) == (2, False, ())
    found = read({1: reply(1, 1, 0, 2, 1), 2: BrokerUnreachable("nobody there")})
    assert (found.level, found.can_rise, found.waits_for) == (1, True, (2,)), "for a broker that is down, too"


def test_the_best_informed_broker_is_believed() -> None:
    found = read({1: reply(1, 1, 0, 2), 2: reply(2, 2, 0, 2, 2), 3: reply(3, 2, 0, 2)})
    assert (found.level, len(found.members)) == (2, 2)


@pytest.mark.parametrize("error", [UnsupportedVersion("old"), BrokerUnreachable("gone")])
def test_the_error_is_raised_when_no_broker_answers(error: UnsupportedVersion | BrokerUnreachable) -> None:
    with pytest.raises(type(error)):
        read({1: error, 2: error})


def test_a_new_cluster_has_the_highest_level_and_a_hold_does_not_lower_it(capsys: pytest.CaptureFixture[str]) -> None:
    with Cluster(nodes=3) as cluster:
        admin = cluster.client().admin
        cluster.wait_until(lambda: cluster.registry(1).feature_level == KNOWN_LEVEL)
        found = admin.feature_level()
        levels = [(m.broker_id, m.known, m.announced, m.held) for m in found.members]
        assert levels == [(n, KNOWN_LEVEL, KNOWN_LEVEL, 0) for n in (1, 2, 3)]
        with pytest.raises(InvalidRequest, match=f"the cluster is at feature level {KNOWN_LEVEL}"):
            admin.hold_feature_level(1)
        command = ["cluster", "feature-level", "hold", "-s", cluster.servers, "-o", "json"]
        assert run(command) == Exit.OK
        held = json.loads(capsys.readouterr().out)
        assert held["waits_for"] == []
        assert (held["feature_level"], [m["held_at"] for m in held["members"]]) == (KNOWN_LEVEL, [KNOWN_LEVEL] * 3)
        cluster.kill(2)
        cluster.start(2)
        assert [m.held for m in admin.feature_level().members] == [KNOWN_LEVEL] * 3, "the data directory has it"
        assert run(["cluster", "feature-level", "release", "-s", cluster.servers]) == Exit.OK
        assert f"the cluster is at feature level {KNOWN_LEVEL}" in capsys.readouterr().err
        assert [m.held for m in admin.feature_level().members] == [0, 0, 0]
