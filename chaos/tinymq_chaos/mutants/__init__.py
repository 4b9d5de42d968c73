"""The product with one rule taken out at a time: who checks the checks. Nothing of it ships.

    make mutants                       all of them; exit 1 if one survives
    make mutants MUTANT=no-pre-votes   one
    make mutants MUTANT=--list         their names and rules
    python -m tinymq_chaos.real.cluster.broker --help    a broker that is one, as a process of its own

MUTANTS is the table. A mutant's focus narrows what happens in its runs; the checkers are those of all runs.
A catch counts only if the same plan without the mutant is clean.
"""

from __future__ import annotations

from tinymq_chaos.mutants import (
    clients,
    disks,
    elections,
    feature_level,
    partition_state,
    partitions,
    registry,
    replicas,
    replication,
    requests,
    weak_topics,
)
from tinymq_chaos.mutants.mutant import MUTANTS, Focus, Mutant, Patches, find, mutant

# Imported for what they enter into MUTANTS.
ROOMS = (
    replication,
    elections,
    disks,
    partitions,
    partition_state,
    requests,
    weak_topics,
    replicas,
    registry,
    feature_level,
    clients,
)

REAL = (
    "acks-before-the-sync",  # shows when machines lose power
    "one-replica-commits",
    "duplicates-are-appended",
    "followers-show-their-whole-log",
    "cursors-are-not-replicated",
    "reads-without-a-round",
)
"""Those that the harness of real processes has to catch: each can be a broker's process."""

__all__ = ["MUTANTS", "REAL", "ROOMS", "Focus", "Mutant", "Patches", "find", "mutant"]
