"""The draws of a plain run, with their odds: the one table, which the code and the page read.

`make sim` without options leaves everything open. `filled` turns such a plan into one that leaves nothing open, so a
failure can be reduced part by part. Each draw has a random source of its own: a part that is given explicitly changes
no other part.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinymq_chaos import workloads
from tinymq_chaos.sim.campaign.plan import Plan
from tinymq_chaos.sim.faults import DAMAGE, FAULTS, SINGLE
from tinymq_chaos.sim.world.world import JOINING, SEGMENT_BYTES, STREAMS, TAIL_SEGMENTS, VOTERS

WRONG_START, UNREPLICATED, TRIM, ALTER = "wrong_start", "unreplicated", "trim", "alter"
OBSERVED = "observed"  # asks all that an admin can ask, in every plain run
EVERY = 1 << 30  # more kinds of faults than there are
DAMAGED_MIN = 3  # replicas and brokers, of which a disk may be lost: the others are a majority


@dataclass(frozen=True, slots=True)
class Draw:
    """One line of the table: a choice among values, each with a weight."""

    name: str
    what: str  # one line for the page
    odds: Sequence[tuple[Any, int]]

    def of(self, seed: int) -> Any:
        values, weights = zip(*self.odds, strict=True)
        return random.Random(f"{seed}/draw/{self.name}").choices(values, weights)[0]

    @property
    def row(self) -> str:
        """Return the line of the page."""
        total = sum(weight for _, weight in self.odds)
        shares = ", ".join(f"{_told(value)}: {100 * weight / total:.3g} %" for value, weight in self.odds)
        return f"| {self.name} | {self.what} | {shares} |"


def _told(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "all" if value == EVERY else f"{value:,}" if isinstance(value, int) else str(value)


BROKERS = Draw("brokers", "at the start; more may join", ((1, 2), (2, 3), (3, 64), (4, 9), (5, 14), (6, 4), (7, 4)))
REPLICAS = Draw("replicas", "of each partition; at most one on each broker", ((1, 8), (2, 8), (3, 64), (4, 8), (5, 12)))
LOADS = Draw("workloads", "side by side, each as likely as another; and `observed`", ((1, 2), (2, 6), (3, 2)))
PACE = Draw("pace", "factor for the pauses of all workloads", ((2.0, 1), (3.0, 1), (5.0, 1)))
KINDS = Draw("kinds of faults", "two of them overlap; each as likely as its weight says", ((1, 4), (2, 5), (EVERY, 1)))
GAPS = Draw(
    "gap", "seconds between two pairs of faults, on average; a long one leaves metadata at rest",
    ((0.7, 7), (3.0, 2), (8.0, 1)),
)  # fmt: skip
TRIMS = Draw("trim", "heads of logs are removed as well", ((True, 3), (False, 7)))
ALTERS = Draw("alter", "settings of topics are altered as well, `sync` among them", ((True, 4), (False, 6)))
ONE_REPLICA = Draw(
    "one replica", "beside a wrong start: a topic with one replica and retention", ((True, 1), (False, 1))
)
QUOTAS = Draw("quota", "bytes per second of each client, for writes and for reads", ((0, 8), (200_000, 1), (60_000, 1)))

THREADED = Draw("threaded", "share of the clients that are synchronous, on threads", ((0.0, 6), (0.5, 2), (1.0, 2)))

TABLE = (BROKERS, REPLICAS, LOADS, PACE, KINDS, GAPS, TRIMS, ALTERS, ONE_REPLICA, QUOTAS, THREADED)

DRAWN_BY_WORLD = (
    Draw("segment bytes", "of all logs", tuple((size, 1) for size in SEGMENT_BYTES)),
    Draw("tail cache", "segments in memory, over all groups of a broker", tuple((n, 1) for n in TAIL_SEGMENTS)),
    Draw(
        "three voters", f"with more than {VOTERS} brokers: only {VOTERS} vote on the metadata, the others join",
        ((True, int(JOINING * 10)), (False, 10 - int(JOINING * 10))),
    ),
    Draw(
        "stream port", "of each broker; with the others, clients use gRPC for streams, too",
        ((True, int(STREAMS * 100)), (False, 100 - int(STREAMS * 100))),
    ),
)  # fmt: skip
"""Draws that the world makes itself, in runs of any kind."""


def page() -> str:
    """Return the table of what is drawn, as the page shows it."""
    return "\n".join(["| draw | what | odds |", "|---|---|---|", *(draw.row for draw in (*TABLE, *DRAWN_BY_WORLD))])


def filled(plan: Plan) -> Plan:
    """Return the plan with every open part drawn. A plan that narrows load or faults leaves replicas, gaps and quotas
    at their usual values."""
    seed, plain = plan.seed, plan.is_plain
    drawn = REPLICAS.of(seed) if plain else 3
    replicas = min(plan.nodes, plan.replicas if plan.replicas is not None else drawn)
    loads = plan.workloads or _workloads(seed, plan.nodes)
    kinds = plan.faults
    if kinds is None:
        kinds = SINGLE if plan.registry == "memory" else _faults(seed, plan.nodes, replicas, loads)
    beside = WRONG_START in kinds and not plan.workloads and UNREPLICATED not in loads and ONE_REPLICA.of(seed)
    if beside and not DAMAGE & {*kinds}:  # damage would take the only replica of a record
        loads = (UNREPLICATED, *loads)
    return replace(
        plan,
        workloads=loads,
        faults=kinds,
        replicas=replicas,
        pace=plan.pace if plan.pace is not None else PACE.of(seed),
        gap_s=plan.gap_s if plan.gap_s is not None else GAPS.of(seed) if plain else GAPS.odds[0][0],
        client_bytes_per_s=(
            plan.client_bytes_per_s if plan.client_bytes_per_s is not None else QUOTAS.of(seed) if plain else 0
        ),
        threaded=plan.threaded if plan.threaded is not None else THREADED.of(seed) if plain else 0.0,
    )


def _workloads(seed: int, nodes: int) -> tuple[str, ...]:
    spared = workloads.NAMED | {OBSERVED} | (workloads.OF_THREE if nodes < 3 else frozenset())
    known = [name for name in sorted(workloads.WORKLOADS) if name not in spared]
    return (OBSERVED, *random.Random(f"{seed}/draw/which workloads").sample(known, LOADS.of(seed)))


def _faults(seed: int, nodes: int, replicas: int, loads: Sequence[str]) -> tuple[str, ...]:
    """Draw kinds of faults, without those that the promises exclude for this cluster and this load."""
    rng = random.Random(f"{seed}/draw/which faults")
    spare = {name for name, fault in FAULTS.items() if fault.drawn.brokers_min > nodes}
    if workloads.WEAK & {*loads} or min(nodes, replicas) < DAMAGED_MIN:
        spare |= DAMAGE
    names = [name for name, fault in FAULTS.items() if fault.drawn.weight and name not in spare]
    weights = [FAULTS[name].drawn.weight for name in names]
    many, chosen = min(KINDS.of(seed), len(names)), list[str]()
    while len(chosen) < many:
        name = rng.choices(names, weights)[0]
        if name not in chosen:
            chosen.append(name)
    chosen += [name for name, draw in ((TRIM, TRIMS), (ALTER, ALTERS)) if name not in chosen and draw.of(seed)]
    return tuple(chosen)
