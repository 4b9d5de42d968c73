"""The systems that a run can test, by name, and how to start a cluster of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tinymq_chaos.real.system.system import SystemUnderTest


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster as a run requests it."""

    folder: Path
    nodes: int = 3
    needs: frozenset[str] = frozenset()  # of what faults need (Real.needs)
    mutants: tuple[str, ...] = ()  # for every broker; only tinymq has mutants


@dataclass(frozen=True, slots=True)
class SystemOffer:
    """The features of a system that a run may request, known before any broker starts."""

    can_have: frozenset[str]  # of what faults need
    workloads: tuple[str, ...]
    nodes: tuple[int, ...]
    mutants: bool


def _tinymq(wanted: ClusterSpec) -> SystemUnderTest:
    from tinymq_chaos.real.cluster.cluster import Cluster
    from tinymq_chaos.real.faults import clocks
    from tinymq_chaos.real.processes import setup
    from tinymq_chaos.real.product.system import ProductSystem

    has = wanted.needs & ProductSystem.CAN_HAVE
    brokers = range(1, wanted.nodes + 1)
    env = clocks.environment(setup.libfaketime(), wanted.folder, brokers) if "faketime" in has else None
    cluster = Cluster(wanted.folder, wanted.nodes, disks="disks" in has, mutants=wanted.mutants, env=env)
    try:
        cluster.up()
    except BaseException:
        cluster.close()
        raise
    return ProductSystem(cluster, has)


def _nats(wanted: ClusterSpec) -> SystemUnderTest:
    from tinymq_chaos.real.peers.nats_system import serving

    return serving(wanted.folder)


def _of_tinymq() -> SystemOffer:
    from tinymq_chaos.real.product.system import RUN, ProductSystem

    return SystemOffer(ProductSystem.CAN_HAVE, RUN, (3, 5), mutants=True)


def _of_nats() -> SystemOffer:
    from tinymq_chaos.real.peers.nats_system import SUITED

    return SystemOffer(frozenset(), SUITED, (3,), mutants=False)


TARGETS: Mapping[str, Callable[[ClusterSpec], SystemUnderTest]] = {"tinymq": _tinymq, "nats": _nats}
"""Each function starts a cluster, and returns when it serves; the caller closes its target. Blocks."""

OFFERS: Mapping[str, Callable[[], SystemOffer]] = {"tinymq": _of_tinymq, "nats": _of_nats}
