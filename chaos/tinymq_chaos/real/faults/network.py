"""Faults of the network, by the proxies: cut directions, and Toxiproxy's toxics on the others."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import partial

from tinymq_chaos.faults import ALL, WITH_ALL, WITH_MANY
from tinymq_chaos.real.faults.kind import ACTIONS, Doing, Parameters, Stage, action, unique_name
from tinymq_chaos.real.faults.processes import broker_names
from tinymq_chaos.real.faults.victims import both_ways, choose_broker, everywhere, sides, strike
from tinymq_chaos.real.net import probes
from tinymq_chaos.real.net.network import CLIENTS, Direction


def _cut(stage: Stage, kind: str, directions: Iterable[Direction], description: str) -> Doing:
    why, directions = unique_name(kind), list(directions)
    probe = probes.Probe(stage.net, directions, probes.ProbeTraffic())
    try:
        stage.net.cut(why, directions)
        probe.begin()
        yield description
        effect = probes.describe_silence(probe)
        stage.net.mend(why)
    finally:
        probe.close()
    return effect


@action
def isolate(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """Cut one broker off from the others, and from clients or not: then clients talk to a broker that no other one
    follows.
    """
    alone = how["clients"] == "cut"

    def cut_off(broker: int) -> Doing:
        others = [n for n in stage.brokers if n != broker]
        directions = both_ways([broker], [*others, CLIENTS] if alone else others)
        return _cut(stage, "isolate", directions, f"{broker_names([broker])}, from clients{'' if alone else ' not'}")

    return strike(stage, rng, how, cut_off)


@action
def partition(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """Cut a minority of brokers off from a majority, with clients on one side or on both."""
    few, many = sides(stage, rng)
    directions = both_ways(few, many)
    if how["clients"] != WITH_ALL:
        directions += both_ways([CLIENTS], few if how["clients"] == WITH_MANY else many)
    description = f"{broker_names(few)} from {broker_names(many)}, clients with {how['clients']}"
    return (yield from _cut(stage, "partition", directions, description))


@action
def one_way(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """Make a broker deaf or mute; or let it not hear one other broker."""
    broker = choose_broker(stage, rng, how)
    if broker is None:
        yield None
        return None
    others = [n for n in stage.brokers if n != broker]
    some = [rng.choice(others)] if how["of"] == "one" else others
    deaf = how["side"] == "deaf"
    directions = [(n, broker) if deaf else (broker, n) for n in some]
    description = (
        f"{broker_names([broker])} does not hear {broker_names(some)}"
        if deaf
        else f"{broker_names(some)} does not hear {broker}"
    )
    return (yield from _cut(stage, "one way", directions, description))


@action
def chain(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """Put the brokers in a row: each talks only to its neighbours.

    With a leader at one end, the other end hears no leader.
    """
    row = rng.sample(stage.brokers, len(stage.brokers))
    apart = [(a, b) for at, a in enumerate(row) for b in row[at + 2 :]]
    directions = [pair for a, b in apart for pair in ((a, b), (b, a))]
    return (yield from _cut(stage, "chain", directions, f"{' - '.join(map(str, row))}"))


@action
def star(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """Let one broker talk to all, and the others only to that one."""
    middle = choose_broker(stage, rng, how)
    if middle is None:
        yield None
        return None
    others = [n for n in stage.brokers if n != middle]
    return (yield from _cut(stage, "star", both_ways(others, others), f"{broker_names([middle])} in the middle"))


def toxic(kind: str, stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """Put one of Toxiproxy's toxics on the part of the network that `where` names.

    The other parameters are its attributes.
    """
    where = str(how["where"])
    attributes = {name: float(value) for name, value in how.items() if name != "where"}
    why, directions, asked = unique_name(kind), everywhere(stage, where), probes.traffic_for(kind, attributes)
    probe = probes.Probe(stage.net, directions[:1], asked)
    try:
        stage.net.toxic(why, directions, kind, **attributes)
        probe.begin()
        text = ", ".join(f"{name} {value:g}" for name, value in attributes.items())
        yield f"{text}, {'everywhere' if where == ALL else f'between {where}'}"
        effect = probes.describer_of(kind, asked)(probe)
        stage.net.mend(why)
    finally:
        probe.close()
    return effect


TOXICS = ("latency", "bandwidth", "slow_close", "reset_peer", "slicer", "limit_data", "timeout")  # Toxiproxy's names
ACTIONS.update({kind: partial(toxic, kind) for kind in TOXICS})
