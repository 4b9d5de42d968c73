"""Faults of the network, done by the proxies: directions that are cut, and Toxiproxy's toxics on those that are not."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import partial

from tinymq_chaos.faults import ALL, WITH_ALL, WITH_MANY
from tinymq_chaos.real.faults.kind import ACTIONS, Doing, Parameters, Stage, action, whose
from tinymq_chaos.real.faults.processes import named
from tinymq_chaos.real.faults.victims import both_ways, everywhere, one, sides, strike
from tinymq_chaos.real.net import probes
from tinymq_chaos.real.net.network import CLIENTS, Direction


def _cut(stage: Stage, kind: str, directions: Iterable[Direction], words: str) -> Doing:
    why, directions = whose(kind), list(directions)
    probe = probes.Probe(stage.net, directions, probes.ProbeTraffic())
    try:
        stage.net.cut(why, directions)
        probe.begin()
        yield words
        effect = probes.silent(probe)
        stage.net.mend(why)
    finally:
        probe.close()
    return effect


@action
def isolate(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """One broker is cut off from the others, and from clients or not: then they talk to one that nobody follows."""
    alone = how["clients"] == "cut"

    def cut_off(broker: int) -> Doing:
        others = [n for n in stage.brokers if n != broker]
        directions = both_ways([broker], [*others, CLIENTS] if alone else others)
        return _cut(stage, "isolate", directions, f"{named([broker])}, from clients{'' if alone else ' not'}")

    return strike(stage, rng, how, cut_off)


@action
def partition(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """A minority of brokers here, a majority there, and clients on one side or on both."""
    few, many = sides(stage, rng)
    directions = both_ways(few, many)
    if how["clients"] != WITH_ALL:
        directions += both_ways([CLIENTS], few if how["clients"] == WITH_MANY else many)
    words = f"{named(few)} from {named(many)}, clients with {how['clients']}"
    return (yield from _cut(stage, "partition", directions, words))


@action
def one_way(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """A broker that hears nobody, or that nobody hears; or one that does not hear one other."""
    broker = one(stage, rng, how)
    if broker is None:
        yield None
        return None
    others = [n for n in stage.brokers if n != broker]
    some = [rng.choice(others)] if how["of"] == "one" else others
    deaf = how["side"] == "deaf"
    directions = [(n, broker) if deaf else (broker, n) for n in some]
    words = f"{named([broker])} does not hear {named(some)}" if deaf else f"{named(some)} does not hear {broker}"
    return (yield from _cut(stage, "one way", directions, words))


@action
def chain(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """Brokers in a row: each talks to its neighbours alone. With a leader at one end, the other end hears of none."""
    row = rng.sample(stage.brokers, len(stage.brokers))
    apart = [(a, b) for at, a in enumerate(row) for b in row[at + 2 :]]
    directions = [pair for a, b in apart for pair in ((a, b), (b, a))]
    return (yield from _cut(stage, "chain", directions, f"{' - '.join(map(str, row))}"))


@action
def star(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """One in the middle talks to all, and the others to it alone."""
    middle = one(stage, rng, how)
    if middle is None:
        yield None
        return None
    others = [n for n in stage.brokers if n != middle]
    return (yield from _cut(stage, "star", both_ways(others, others), f"{named([middle])} in the middle"))


def toxic(kind: str, stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """One of Toxiproxy's, on the part of the network that `where` names; the other parameters are its attributes."""
    where = str(how["where"])
    attributes = {name: float(value) for name, value in how.items() if name != "where"}
    why, directions, asked = whose(kind), everywhere(stage, where), probes.question(kind, attributes)
    probe = probes.Probe(stage.net, directions[:1], asked)
    try:
        stage.net.toxic(why, directions, kind, **attributes)
        probe.begin()
        said = ", ".join(f"{name} {value:g}" for name, value in attributes.items())
        yield f"{said}, {'everywhere' if where == ALL else f'between {where}'}"
        effect = probes.teller(kind, asked)(probe)
        stage.net.mend(why)
    finally:
        probe.close()
    return effect


TOXICS = ("latency", "bandwidth", "slow_close", "reset_peer", "slicer", "limit_data", "timeout")  # Toxiproxy's names
ACTIONS.update({kind: partial(toxic, kind) for kind in TOXICS})
