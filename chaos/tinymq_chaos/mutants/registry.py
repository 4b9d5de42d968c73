"""Mutants of the numbers that the registry gives only once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tinymq.registry.state.state import RegistryState
from tinymq_chaos.mutants.mutant import Focus, mutant, replaces

ADDED = Focus(faults=("kill",), workloads=("partitions",), pace=0.5)
OPENED = Focus(faults=("client_reset",), workloads=("rush",), pace=0.5)


@mutant("a partition's number is never given again", ADDED)
@replaces(RegistryState.put_topic)
def numbers_are_used_again(real: Any, self: RegistryState, topic: Any) -> None:
    after = max((queue.partition for queue in topic.queues), default=-1) + 1
    real(self, replace(topic, next_partition=after))


@mutant("each consumer of a channel has a new epoch", OPENED)
@replaces(RegistryState.set_consumer)
def epochs_are_given_again(real: Any, self: RegistryState, request: Any, effects: Any) -> int:
    real(self, request, effects)
    return 1
