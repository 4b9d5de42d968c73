"""Storms and power cuts in virtual time, by name, with fresh seeds; the tests run a few fixed ones. The seed of a
failed run repeats it.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable

from tests.broker import test_power_cut as test_power_cut_of_brokers
from tests.broker.replicas import test_quorum_watch_storms
from tests.raft import test_observers, test_power_cut, test_read_index, test_storms
from tests.raft.test_disk_failures import test_a_replica_that_failed_under_load_comes_back_as_a_member as fails
from tests.raft.test_rejoining import test_any_minority_may_be_lost_repeatedly as minority

SEEDS_OF_A_TURN = 1000  # distance between the first seeds of two turns

ALL: dict[str, Callable[[int], None]] = {
    "raft.power_cut": test_power_cut.test_acknowledged_records_survive,
    "raft.power_cut_of_groups": test_power_cut.test_power_cuts_of_groups_that_share_syncs,
    "raft.storm": test_storms.test_three_brokers,
    "raft.storm_of_five": test_storms.test_five_brokers,
    "raft.storm_of_groups": test_storms.test_several_groups,
    "raft.observers": test_observers.test_storms_with_observers,
    "raft.minorities": lambda seed: minority((3, 5)[seed % 2], seed),
    "raft.reads": test_read_index.test_reads_in_a_storm_are_never_stale_and_all_end,
    "raft.failed_sync": lambda seed: fails(seed=seed, how="sync"),
    "raft.full_disk": lambda seed: fails(seed=seed, how="full"),
    "brokers.power_cut": test_power_cut_of_brokers.test_acknowledged_batches_survive_once,
    "brokers.memory": lambda seed: test_quorum_watch_storms.test_groups_recover_and_agree_after_storms(
        test_quorum_watch_storms.MEMORY, seed
    ),
    "brokers.intervals": lambda seed: test_quorum_watch_storms.test_groups_recover_and_agree_after_storms(
        test_quorum_watch_storms.LAZY, seed
    ),
}


def run(name: str, turn: int, seconds: float) -> int:
    """Run seeds in order until the time is over, at least one. Returns 1 when one failed."""
    began_s, number = time.monotonic(), 0
    while number == 0 or time.monotonic() < began_s + seconds:
        if once(name, turn, number):
            return 1
        number += 1
    print(f"{name:24} {number:8d} seeds    {number / (time.monotonic() - began_s):8.1f}/s", flush=True)
    return 0


def once(name: str, turn: int, number: int) -> int:
    """Run one seed. Returns 1 when it failed, and prints the command that repeats it."""
    try:
        ALL[name](turn * SEEDS_OF_A_TURN + number)
    except Exception:
        print(f"FOUND {name}: {traceback.format_exc()[-6000:]}")
        print(f"again: python -m tests.fuzz {name} --case {turn}:{number}", flush=True)
        return 1
    return 0
