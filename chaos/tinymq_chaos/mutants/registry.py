"""Mutants of the numbers that the registry gives only once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tinymq.registry.state.state import RegistryState
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant

ADDED = Focus(faults=("kill",), workloads=("partitions",), pace=0.5)
OPENED = Focus(faults=("client_reset",), workloads=("rush",), pace=0.5)


@mutant("a partition's number is never given again", ADDED)
def numbers_are_used_again(p: Patches) -> None:
    real = RegistryState.put_topic

    def put(self: RegistryState, topic: Any) -> None:
        after = max((queue.partition for queue in topic.queues), default=-1) + 1
        real(self, replace(topic, next_partition=after))

    p.replace(RegistryState.put_topic, put)


@mutant("each consumer of a channel has a new epoch", OPENED)
def epochs_are_given_again(p: Patches) -> None:
    real = RegistryState.set_consumer

    def set_consumer(self: RegistryState, wanted: Any, effects: Any) -> int:
        real(self, wanted, effects)
        return 1

    p.replace(RegistryState.set_consumer, set_consumer)
