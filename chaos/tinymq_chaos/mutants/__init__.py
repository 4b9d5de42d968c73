"""Mutants: the product without one of its rules, to check the checks. No mutant ships.

    make mutants                       all of them; exit 1 if one survives
    make mutants MUTANT=no-pre-votes   one
    make mutants MUTANT=--list         their names and rules
    python -m tinymq_chaos.real.cluster.broker --help    run a broker with a mutant, as a process of its own

MUTANTS is the table. A mutant's focus narrows what happens in its runs; its runs have the same checkers as all others.
A catch counts only if the same plan is clean without the mutant.
"""

from __future__ import annotations

from tinymq_chaos.mutants import (
    clients,
    disks,
    elections,
    feature_level,
    partition_state,
    partitions,
    queue_groups,
    registry,
    replicas,
    replication,
    requests,
    weak_topics,
)
from tinymq_chaos.mutants.groups import group_life, queue_leases, stream_groups, workers
from tinymq_chaos.mutants.mutant import MUTANTS, Focus, Mutant, Patches, find, mutant
from tinymq_chaos.mutants.transactions import coordinators, half_messages, staged_acks, staged_batches, staged_offsets

# Importing a module enters its mutants into MUTANTS.
ROOMS = (
    replication,
    elections,
    disks,
    partitions,
    coordinators,
    staged_batches,
    staged_offsets,
    staged_acks,
    half_messages,
    partition_state,
    queue_groups,
    queue_leases,
    workers,
    group_life,
    stream_groups,
    requests,
    weak_topics,
    replicas,
    registry,
    feature_level,
    clients,
)

REAL = (
    "acks-before-the-sync",  # visible only when machines lose power
    "one-replica-commits",
    "duplicates-are-appended",
    "followers-show-their-whole-log",
    "cursors-are-not-replicated",
    "reads-without-confirmation",
)
"""The mutants that the harness of real processes has to catch. A broker's process can run each of them."""

__all__ = ["MUTANTS", "REAL", "ROOMS", "Focus", "Mutant", "Patches", "find", "mutant"]
