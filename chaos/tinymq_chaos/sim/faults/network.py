"""Faults of the network, between brokers and to their clients."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tinymq.base.types import METADATA_GROUP
from tinymq.raft.net.transport import Channel
from tinymq_chaos.sim.faults.action import action
from tinymq_chaos.sim.faults.victims import anyone, both_ways, directions, in_words, running, sides
from tinymq_chaos.sim.world.world import World

OFFERED_S = 0.15  # between two offers of a snapshot


@action
def isolate(world: World, rng: random.Random) -> Iterator[str | None]:
    """Cut one broker off from all others. Clients may still reach it."""
    broker = running(world, rng) or anyone(world, rng)
    alone, others = [broker.id], [n for n in world.brokers if n != broker.id]
    if rng.random() < 0.3:
        others += world.clients.clients
    world.cut("isolate one", both_ways(alone, others))
    yield f"broker {broker.id}"
    world.mend("isolate one")


@action
def partition(world: World, rng: random.Random) -> Iterator[str | None]:
    few, many = sides(world, rng)
    world.cut("partition", both_ways(few, many))
    yield f"{few} | {many}"
    world.mend("partition")


@action
def one_way(world: World, rng: random.Random) -> Iterator[str | None]:
    few, many = sides(world, rng)
    if rng.random() < 0.5:
        few, many = many, few
    world.cut("one way", [(a, b) for a in few for b in many])
    yield f"nothing gets from {few} to {many}"
    world.mend("one way")


@action
def unheard(world: World, rng: random.Random) -> Iterator[str | None]:
    """No message gets from the leader of a group to one of its followers.

    Half the time the group is the metadata group, which is mostly idle, and which brokers without a vote follow, too.
    """
    groups = sorted({g.id for b in world.brokers.values() for g in b.groups()}, key=str)
    group = METADATA_GROUP if rng.random() < 0.5 else rng.choice(groups or [METADATA_GROUP])
    leader = world.leader(group)
    followers = [b.id for b in world.brokers.values() if b is not leader and any(g.id == group for g in b.groups())]
    if leader is None or not followers:
        yield None
        return
    follower = rng.choice(followers)
    world.cut("unheard", [(leader.id, follower)])
    yield f"{leader.id} -> {follower}, of {group}"
    world.mend("unheard")


@action
def cut_link(world: World, rng: random.Random) -> Iterator[str | None]:
    a, b = rng.sample(list(world.brokers), 2)
    both = rng.random() < 0.6
    world.cut("cut link", both_ways([a], [b]) if both else [(a, b)])
    yield f"{a} {'-' if both else '->'} {b}"
    world.mend("cut link")


@action
def chain(world: World, rng: random.Random) -> Iterator[str | None]:
    ids = rng.sample(list(world.brokers), len(world.brokers))
    world.cut("chain", [pair for at, a in enumerate(ids) for pair in both_ways([a], ids[at + 2 :])])
    yield " - ".join(map(str, ids))
    world.mend("chain")


@action
def star(world: World, rng: random.Random) -> Iterator[str | None]:
    centre, *rays = rng.sample(list(world.brokers), len(world.brokers))
    world.cut("star", [(a, b) for a in rays for b in rays if a != b])
    yield f"only {centre} reaches the others"
    world.mend("star")


@action
def seesaw(world: World, rng: random.Random) -> Iterator[str | None]:
    """Cut off a minority that includes a group's leader again and again, sometimes together with all clients.

    In between all is well for a moment.
    """
    groups = sorted({g.id for b in world.brokers.values() for g in b.groups()}, key=str)
    if not groups:
        yield None
        return
    group, over, ids = rng.choice(groups), False, list(world.brokers)
    companions = rng.sample(ids, len(ids))

    def cut_off() -> None:
        leader = world.leader(group)
        if over or leader is None:
            again_s = 0.1
        else:
            others = [n for n in companions if n != leader.id][: (len(ids) - 3) // 2]
            few = [leader.id, *others, *(world.clients.clients if rng.random() < 0.5 else ())]
            world.changed(f"cut off with the leader of {group}: {few}")
            world.cut("seesaw", both_ways(few, [n for n in ids if n not in few]))
            again_s = rng.uniform(1.0, 2.5)
            world.clock.call_later(again_s, lambda: world.mend("seesaw"))
            again_s += rng.uniform(0.02, 0.8)
        if not over:
            world.clock.call_later(again_s, cut_off)

    cut_off()
    yield f"of {group}"
    over = True
    world.mend("seesaw")


@action
def latency(world: World, rng: random.Random) -> Iterator[str | None]:
    broker_id = rng.choice(list(world.brokers))
    seconds, jitter_s = rng.choice(((0.001, 0.002), (0.01, 0.02), (0.05, 0.1), (0.1, 0.2), (0.3, 0.3)))
    chosen = [broker_id] if rng.random() < 0.5 else list(world.brokers)
    for each in chosen:
        world.links(each, seconds, jitter_s)
    yield f"{seconds} s and up to {jitter_s} s more to and from {chosen}"
    for each in chosen:
        world.links(each, *world.link_s)


@action
def loss(world: World, rng: random.Random) -> Iterator[str | None]:
    """Packets are lost and sent again, which delays all packets after them."""
    share, some = rng.choice((0.01, 0.05, 0.2)), directions(world, rng)
    for direction in some:
        world.conditions.of(direction).loss = share
    yield f"{share:.0%} of packets, {in_words(some)}"
    for direction in some:
        world.conditions.of(direction).loss = 0.0


@action
def duplicate(world: World, rng: random.Random) -> Iterator[str | None]:
    """Control messages arrive twice, which TCP never does."""
    share, some = rng.choice((0.05, 0.3, 0.9)), directions(world, rng)
    for direction in some:
        world.conditions.of(direction).duplicate = share
    yield f"{share:.0%} of control messages, {in_words(some)}"
    for direction in some:
        world.conditions.of(direction).duplicate = 0.0


@action
def stale(world: World, rng: random.Random) -> Iterator[str | None]:
    """Messages between replicas arrive again, seconds later, if the connection is still open.

    Snapshots are offered again and again. For a moment, a replica that installed one has an uncommitted entry behind
    it.
    """
    share, some = rng.choice((0.1, 0.5)), [(a, b) for a in world.brokers for b in world.brokers if a != b]
    over = False

    def offer_again() -> None:
        if not over:
            for broker_id in world.brokers:
                world.network.deliver_again(broker_id, lambda message: message.HasField("install_snapshot"))
            world.clock.call_later(OFFERED_S, offer_again)

    for direction in some:
        world.conditions.of(direction).stale = share
    offer_again()
    yield f"{share:.0%} of the messages between replicas, {in_words(some)}"
    over = True
    for direction in some:
        world.conditions.of(direction).stale = 0.0


@action
def drop(world: World, rng: random.Random) -> Iterator[str | None]:
    """Control messages are lost for good, which TCP never does."""
    share, some = rng.choice((0.02, 0.1)), directions(world, rng)
    for direction in some:
        world.conditions.of(direction).drop = share
    yield f"{share:.0%} of control messages, {in_words(some)}"
    for direction in some:
        world.conditions.of(direction).drop = 0.0


@action
def reorder(world: World, rng: random.Random) -> Iterator[str | None]:
    """Add great jitter: connections overtake one another, and each keeps its own order."""
    some, jitter_s = directions(world, rng), rng.choice((0.05, 0.2))
    for direction in some:
        world.conditions.of(direction).jitter_s = jitter_s
    yield f"up to {jitter_s} s apart, {in_words(some)}"
    for direction in some:
        world.conditions.of(direction).jitter_s = world.link_s[1]


@action
def reset(world: World, rng: random.Random) -> Iterator[str | None]:
    some = [tuple(rng.sample(list(world.brokers), 2)) for _ in range(rng.randint(1, 4))]
    for a, b in some:
        world.network.reset(a, b)
    yield f"between {some}"


@action
def cut_channel(world: World, rng: random.Random) -> Iterator[str | None]:
    """One kind of connections between two brokers, or of one broker, is cut. The other kind passes everything."""
    channel, a = rng.choice(tuple(Channel)), rng.choice(list(world.brokers))
    others = [n for n in world.brokers if n != a]
    some = both_ways([a], others if rng.random() < 0.5 else [rng.choice(others)])
    for direction in some:
        world.conditions.cut_part(direction, channel)
    yield f"{channel.name} of {in_words(some)}" if len(some) < 3 else f"{channel.name} of broker {a}"
    for direction in some:
        world.conditions.heal_part(direction, channel)
    world.network.healed()


@action
def dead_connection(world: World, rng: random.Random) -> Iterator[str | None]:
    """One connection carries nothing any more, and neither end is told. The kernel ends it at last."""
    a, b = rng.sample(list(world.brokers), 2)
    channel = rng.choice(tuple(Channel))
    if not world.network.lose_connection(a, b, channel):
        yield None
        return
    yield f"{channel.name} {a} -> {b}"
    world.network.end_lost(a, b, channel)


@action
def client_reset(world: World, rng: random.Random) -> Iterator[str | None]:
    if not world.clients.clients:
        yield None
        return
    ids, clients = list(world.brokers), world.clients.clients
    some = [(rng.choice(clients), rng.choice(ids)) for _ in range(rng.randint(1, 8))]
    for client, broker_id in some:
        world.clients.reset(client, broker_id)
    yield f"between {some}"
