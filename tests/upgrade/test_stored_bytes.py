"""The present build loads the bytes of the base build with the same meaning, and stores them as the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.upgrade.base_build import site
from tinymq.base.topic_config import make
from tinymq.broker.state.state import PartitionState
from tinymq.raft.rules.membership import pack_membership, parse_membership
from tinymq.registry.state.state import RegistryState

SCRIPT = Path(__file__).parent / "stored_by_base.py"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The output of the base build."""
    env = {**os.environ, "PYTHONPATH": str(site()), "PYTHONSAFEPATH": "1"}
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    done = subprocess.run([sys.executable, SCRIPT], env=env, cwd=elsewhere, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_a_registry(base: dict[str, Any]) -> None:
    stored = bytes.fromhex(base["registry"])
    state = RegistryState()
    state.load(stored)
    assert state.dump() == stored
    assert state.feature_level == 1
    assert [record.feature_level for record in state.brokers.values()] == [1, 1, 1]
    for name, topic in state.topics.items():
        known = dict(base["settings"][name])
        assert [list(setting) for setting in topic.config.settings() if setting[0] in known] == base["settings"][name]
    asked = [(name, text) for name, text in base["asked"]["bounded"]]
    assert state.topics["bounded"].config == make(asked), "no bound stays no bound"
    assert sorted(state.topics) == ["bounded", "memory", "plain"]


def test_a_partition(base: dict[str, Any]) -> None:
    stored = bytes.fromhex(base["partition"])
    state = PartitionState()
    state.load(stored)
    assert state.dump() == stored
    assert (state.log_start, state.high_watermark, state.cursors["c"].position) == (2, 12, 4)


def test_a_config(base: dict[str, Any]) -> None:
    stored = bytes.fromhex(base["config"])
    membership = parse_membership(stored)
    assert pack_membership(membership) == stored
    assert (membership.epoch, membership.recovery_epoch, len(membership.retired)) == (9, 1 << 33, 1)
