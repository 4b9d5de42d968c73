"""Whose brokers a run is about: by name, how their cluster is brought up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tinymq_chaos.real.system.system import SystemUnderTest


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster as a run asks for it."""

    folder: Path
    nodes: int = 3
    needs: frozenset[str] = frozenset()  # of what kinds of faults need (Real.needs)
    mutants: tuple[str, ...] = ()  # rules that are taken out on every broker; ours only


@dataclass(frozen=True, slots=True)
class SystemOffer:
    """What a run may ask of somebody's brokers: known before one of them is started."""

    can_have: frozenset[str]  # of what kinds of faults need
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
"""Each brings the cluster up, and returns when it serves; the caller closes its target. Blocks."""

OFFERS: Mapping[str, Callable[[], SystemOffer]] = {"tinymq": _of_tinymq, "nats": _of_nats}
