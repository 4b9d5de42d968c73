"""The effect of each fault on a world, observed from outside: a fault without an effect would pass for a survived
one."""

from __future__ import annotations

import ast
import asyncio
import fnmatch
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.chaos.clock_effects import drifts, starts_wrong, wall_jumps
from tests.chaos.connection_effects import cuts_a_channel, kills_a_connection
from tests.chaos.disk_effects import fails_one_operation, hangs_one_file, has_no_room
from tests.chaos.joins import joins, replaced_in_turn
from tests.chaos.setting_effects import alters
from tests.chaos.test_sim import HAPPENS
from tests.chaos.twin_effects import starts_twice
from tests.chaos.worlds import (
    SEEN_S,
    Pair,
    begun,
    crossing,
    delivered,
    every_pair,
    in_world,
    numbers,
    others,
    silent,
    travel_s,
    turns,
    write,
)
from tinymq.base.errors import DiskFull, StorageError
from tinymq.base.types import METADATA_GROUP
from tinymq.raft import Role
from tinymq.simulation.faulty_inodes import Inode
from tinymq.simulation.pipes import Pipe
from tinymq_chaos.sim.faults import FAULTS
from tinymq_chaos.sim.network.links import client_connector
from tinymq_chaos.sim.virtual.event_loop import SimProcess, VirtualClock, VirtualLoop, run_virtually
from tinymq_chaos.sim.virtual.synced_files import SyncedFiles
from tinymq_chaos.sim.world.brokers import SimBroker
from tinymq_chaos.sim.world.world import World

SCRATCH = "scratch"  # a file of the test's own

Check = Callable[[World], Awaitable[None]]
EFFECTS: dict[str, Check] = {
    "alter": alters,
    "cut_channel": cuts_a_channel,
    "dead_connection": kills_a_connection,
    "disk_error": fails_one_operation,
    "drift": drifts,
    "hung_file": hangs_one_file,
    "join": joins,
    "next_disk": replaced_in_turn,
    "no_room": has_no_room,
    "twin": starts_twice,
    "wall_jump": wall_jumps,
    "wrong_start": starts_wrong,
}


def effect(check: Check) -> Check:
    """Register the check of the fault with the function's name."""
    EFFECTS[check.__name__] = check
    return check


KINDS = [kind for kind, fault in FAULTS.items() if fault.drawn.weight or kind not in HAPPENS]
TOGETHER = (  # faults that leave a world as they found it, so that one world serves for all of them
    ("isolate", "partition", "one_way", "unheard", "cut_link", "chain", "star"),
    ("latency", "loss", "duplicate", "drop", "reorder", "stale", "client_reset", "reset"),
    ("cut_channel", "dead_connection", "hung_file", "disk_error", "no_room", "alter"),
    ("slow_disk", "hung_disk", "disk_full", "wall_jump", "drift", "fail_sync"),
    ("pause", "kill", "kill_all", "power_cut_all", "power_cut", "stop", "rolling_restart", "seesaw"),
    ("remove_group", "read_error", "wipe", "lost_config"),
)
ALONE = [(kind,) for kind in KINDS if not any(kind in kinds for kinds in TOGETHER)]


@pytest.mark.parametrize("kinds", [*TOGETHER, *ALONE], ids="-".join)
def test_each_fault_has_its_effect(kinds: tuple[str, ...]) -> None:
    async def each(world: World) -> None:
        for kind in kinds:
            assert await world.healthy(20.0) == "", f"before {kind}"
            assert kind in EFFECTS, "what does it do? Only that it happens is tested, or not even that"
            await EFFECTS[kind](world)

    assert in_world(each).over


def test_every_kind_is_looked_at() -> None:
    assert EFFECTS.keys() | HAPPENS.keys() == FAULTS.keys()
    assert [kind for kind, fault in FAULTS.items() if fault.drawn.weight and kind not in EFFECTS] == []
    assert sorted(kind for kinds in (*TOGETHER, *ALONE) for kind in kinds) == sorted(KINDS)


# ---- network -------------------------------------------------------------------------------------------------


@effect
async def isolate(world: World) -> None:
    def cut(words: str) -> set[Pair]:
        (alone,) = numbers(words)
        return {pair for pair in every_pair(world) if alone in pair}

    await silent(world, "isolate", cut)


@effect
async def partition(world: World) -> None:
    def cut(words: str) -> set[Pair]:
        few, many = map(numbers, words.split("|"))
        assert max(few) > 100  # a client's link is cut like a broker's
        assert all(world.conditions.is_cut(pair) for pair in crossing(few, many))
        return crossing(few, many) & every_pair(world)

    await silent(world, "partition", cut, "101] |")


@effect
async def one_way(world: World) -> None:
    def cut(words: str) -> set[Pair]:
        few, many = map(numbers, words.split(" to "))
        return {(a, b) for a in few for b in many} & every_pair(world)

    await silent(world, "one_way", cut)


@effect
async def unheard(world: World) -> None:
    def cut(words: str) -> set[Pair]:
        leader, follower = numbers(words.partition(", of ")[0])
        assert any(g.is_leader for g in world.brokers[leader].groups())
        return {(leader, follower)}

    await silent(world, "unheard", cut, "of metadata")


@effect
async def cut_link(world: World) -> None:
    for arrow in ("-", "->"):

        def cut(words: str, arrow: str = arrow) -> set[Pair]:
            a, b = numbers(words)
            return {(a, b), (b, a)} if arrow == "-" else {(a, b)}

        await silent(world, "cut_link", cut, f" {arrow} ")


@effect
async def chain(world: World) -> None:
    await silent(world, "chain", lambda words: crossing(numbers(words)[:1], numbers(words)[2:]))


@effect
async def star(world: World) -> None:
    await silent(world, "star", lambda words: {p for p in every_pair(world) if not {*p} & {*numbers(words)}})


@effect
async def seesaw(world: World) -> None:
    """Leaders change, and in between brokers meet again."""
    before = {g.id: g.term for g in world.brokers[1].groups()}
    words, fault = begun(world, "seesaw")
    (group,) = [g for g in before if words == f"of {g}"]
    await world.clock.sleep(6.0)
    next(fault, None)
    assert await world.healthy(10.0) == ""
    after = {g.id: g.term for g in world.brokers[1].groups()}
    assert after[group] >= before[group] + 2
    assert (await delivered(world, SEEN_S)).keys() == every_pair(world)


@effect
async def latency(world: World) -> None:
    assert await travel_s(world, (1, 2)) < 0.001
    words, fault = begun(world, "latency", "0.3 s and up to 0.3 s more to and from [1, 2, 3]")
    took = [await travel_s(world, pair) for pair in every_pair(world)]
    assert 0.3 <= min(took) < max(took) <= 0.6, words
    next(fault, None)
    assert await travel_s(world, (1, 2)) < 0.001


@effect
async def loss(world: World) -> None:
    """A lost message is sent again: late, and it arrives."""
    _, fault = begun(world, "loss", "20% of packets, everywhere")
    took = [await travel_s(world, (1, 2)) for _ in range(200)]
    assert 20 < sum(s >= 0.2 for s in took) < 60
    next(fault, None)
    assert max([await travel_s(world, (1, 2)) for _ in range(200)]) < 0.001


@effect
async def duplicate(world: World) -> None:
    assert {world.conditions.copies((1, 2)) for _ in range(100)} == {1}
    usual = (await delivered(world, 10.0)).total()
    _, fault = begun(world, "duplicate", "90% of control messages, everywhere")
    assert (await delivered(world, 10.0)).total() > 1.5 * usual
    next(fault, None)
    assert (await delivered(world, 10.0)).total() < 1.2 * usual


@effect
async def drop(world: World) -> None:
    usual = (await delivered(world, 20.0)).total()
    _, fault = begun(world, "drop", "10% of control messages, everywhere")
    assert {world.conditions.copies((1, 2)) for _ in range(100)} == {0, 1}
    assert (await delivered(world, 20.0)).total() < 0.96 * usual
    next(fault, None)
    assert {world.conditions.copies((1, 2)) for _ in range(100)} == {1}


@effect
async def stale(world: World) -> None:
    """Messages arrive again, some of them seconds later."""
    lines: list[Pair] = []
    for target in {pipe.target: None for pipe in world.network._pipes}:

        def deliver(pipe: Pipe, *rest: Any, real: Any = target.deliver) -> None:
            lines.append(pipe.direction)
            real(pipe, *rest)

        target.deliver = deliver  # type: ignore[method-assign]
    first = (await delivered(world, 4.0)).total()
    assert len(lines) == first
    assert world.conditions.again_after_s((1, 2)) is None
    _, fault = begun(world, "stale", "50% of the messages between replicas")
    again = [world.conditions.again_after_s((1, 2)) for _ in range(100)]
    assert 30 < sum(s is not None and s > 0.01 for s in again) < 70
    lines.clear()
    writing = asyncio.ensure_future(write(world.client(random.Random(3))))
    once = (await delivered(world, 8.0)).total()
    await writing
    assert len(lines) > once + 50
    next(fault, None)
    assert world.conditions.again_after_s((1, 2)) is None


@effect
async def reorder(world: World) -> None:
    """Two connections between the same places overtake one another."""

    async def overtakes() -> bool:
        first, second = (asyncio.ensure_future(travel_s(world, (1, 2))) for _ in range(2))
        return await second < await first - 0.01

    assert not any([await overtakes() for _ in range(20)])
    _, fault = begun(world, "reorder", "up to 0.05 s apart, everywhere")
    assert any([await overtakes() for _ in range(20)])
    next(fault, None)
    assert not any([await overtakes() for _ in range(20)])


@effect
async def reset(world: World) -> None:
    before = list(world.network._pipes)
    words, _ = begun(world, "reset")
    pairs = {frozenset(pair) for pair in ast.literal_eval(words.removeprefix("between "))}
    assert pairs < {frozenset(pair) for pair in every_pair(world)}
    assert {frozenset(p.direction) for p in before if not p.open} == pairs
    await world.clock.sleep(2.0)
    assert {p.direction for p in world.network._pipes} == every_pair(world)


@effect
async def client_reset(world: World) -> None:
    connector = client_connector(world.clients)
    calls = {n: await connector.link(f"memory:{n}").open_produce(5.0) for n in world.brokers}
    words, _ = begun(world, "client_reset", f"({connector.number}, ")
    hit = {b for client, b in ast.literal_eval(words.removeprefix("between ")) if client == connector.number}
    assert {n for n, call in calls.items() if call._call.up.broken is not None} >= hit > set()


# ---- disks ---------------------------------------------------------------------------------------------------


async def works_s(world: World, broker: SimBroker) -> float:
    began_s = world.loop.time()
    await broker.disk.run(lambda: None)
    return world.loop.time() - began_s


@effect
async def slow_disk(world: World) -> None:
    assert max([await works_s(world, world.brokers[1]) for _ in range(20)]) <= 0.004
    words, fault = begun(world, "slow_disk", "twice (0.05, 0.3) s at [1, 2, 3]")
    assert all([0.1 <= await works_s(world, broker) <= 0.6 for broker in world.brokers.values()]), words
    next(fault, None)
    assert max([await works_s(world, world.brokers[1]) for _ in range(20)]) <= 0.004


@effect
async def hung_disk(world: World) -> None:
    words, fault = begun(world, "hung_disk")
    (hung,) = numbers(words)
    work = asyncio.ensure_future(works_s(world, world.brokers[hung]))
    await world.clock.sleep(3.0)
    assert not work.done()
    assert [await works_s(world, broker) < 0.1 for broker in others(world, hung)] == [True, True]
    next(fault, None)
    assert 3.0 <= await work < 3.1


@effect
async def fail_sync(world: World) -> None:
    words, fault = begun(world, "fail_sync")
    broker = world.brokers[numbers(words)[-1]]
    pattern = words.removeprefix("the next sync of ").split()[0]
    file = broker.files.open(fnmatch.filter(broker.files.paths(), pattern)[0])
    with pytest.raises(StorageError, match="sync"):
        broker.files.sync([file])
    broker.files.sync([file])  # once
    process = broker.process
    next(fault, None)
    assert not process.alive


@effect
async def disk_full(world: World) -> None:
    words, fault = begun(world, "disk_full")
    left, broker_id = numbers(words.partition(",")[0])  # there may be room again later
    files = world.brokers[broker_id].files
    with pytest.raises(DiskFull):
        files.open(SCRATCH, create=True).write(0, [b"x" * (left + 1)])
    assert len(files.content(SCRATCH)) == left
    next(fault, None)
    files.open(SCRATCH).write(0, [b"x" * (left + 1)])


@effect
async def trim(world: World) -> None:
    def starts() -> dict[tuple[object, int], int]:
        return {(g.id, b.id): g.log.first_index for b in world.brokers.values() for g in b.groups()}

    before = starts()
    assert {*before.values()} == {1}
    words, _ = begun(world, "trim")
    after = {f"{group} of broker {b} to {first}" for (group, b), first in starts().items() if first > 1}
    assert set(words.split(", ")) == after > set()
    await world.clock.sleep(0.5)
    for broker in world.brokers.values():
        for group in broker.groups():
            kept = [path for path in broker.files.paths() if path == group.log.segments.first.path]
            assert kept, "its first segment is there"
            firsts = [p for p in broker.files.paths() if p.rpartition("/")[0] == kept[0].rpartition("/")[0]]
            assert group.log.first_index == 1 or not any("00000000000000000001.log" in path for path in firsts)


# ---- processes -----------------------------------------------------------------------------------------------


@effect
async def pause(world: World) -> None:
    words, fault = begun(world, "pause")
    (paused,) = numbers(words)
    broker = world.brokers[paused]
    assert await turns(world, broker, 1.0) == 0
    assert await turns(world, others(world, paused)[0], 1.0) > 90
    assert {source for source, _ in await delivered(world, 1.0)} == {*world.brokers} - {paused}
    next(fault, None)
    assert await turns(world, broker, 1.0) > 90
    await pauses_of_two_faults(world, broker)


async def pauses_of_two_faults(world: World, broker: SimBroker) -> None:
    """A process goes on when both have ended, and the end of one changes nothing for a later process."""
    first = broker.process
    world.pause(broker, "one")
    world.pause(broker, "another")
    world.resume(first, "one")
    assert await turns(world, broker, 0.2) == 0
    broker.kill()
    assert await world.healthy(20.0) == ""
    world.pause(broker, "a third")
    world.resume(first, "another")
    assert await turns(world, broker, 0.2) == 0
    assert broker.id not in {source for source, _ in await delivered(world, 1.0)}
    world.resume(broker.process, "a third")
    assert await turns(world, broker, 1.0) > 90


def unsynced(broker: SimBroker) -> bytes:
    """Write other content for each of its processes, unsynced."""
    return b"unsynced in start %d" % broker.starts


async def goes_down(world: World, kind: str, at_least: int, saying: str = "") -> tuple[list[SimBroker], list[int]]:
    """Processes end and do nothing more, and others take their place when the fault ends.

    Return (brokers, those whose unsynced writes are still there).
    """
    before = {b: b.process for b in world.brokers.values()}
    for broker in before:
        broker.files.open(SCRATCH, create=True).write(0, [unsynced(broker)])
    words, fault = begun(world, kind, saying)
    await world.clock.sleep(1.5)
    down = [b for b in before if not before[b].alive]
    assert [b.id for b in down] == sorted(numbers(words.split("]")[0]))
    assert len(down) >= at_least
    assert not any(b.up for b in down)
    assert all(b.up for b in before if b not in down)
    kept = [b.id for b in down if b.files.seen().get(SCRATCH) == unsynced(b)]
    next(fault, None)
    await world.clock.sleep(1.0)
    assert all(b.up and b.process is not before[b] for b in down)
    return down, kept


@effect
async def kill(world: World) -> None:
    (down,), kept = await goes_down(world, "kill", 1)
    assert kept == [down.id]  # the machine is not gone


@effect
async def kill_all(world: World) -> None:
    down, kept = await goes_down(world, "kill_all", 2)
    assert kept == [broker.id for broker in down]


@effect
async def power_cut(world: World) -> None:
    """No broker is told, and unsynced writes may be gone."""
    lost = 0
    for _ in range(8):
        _, kept = await goes_down(world, "power_cut", 1)
        lost += not kept
        assert await world.healthy(20.0) == ""
    assert 0 < lost < 8


@effect
async def power_cut_all(world: World) -> None:
    down, _ = await goes_down(world, "power_cut_all", 2)
    assert sum(broker.happened["power cut with unsynced writes"] for broker in down) == len(down)


@effect
async def stop(world: World) -> None:
    """The broker transfers its leaderships, and ends by itself."""
    leader = world.leader(METADATA_GROUP)
    assert leader is not None
    words, fault = begun(world, "stop", f"[{leader.id}]")
    assert leader.up
    await world.until(lambda: not leader.up, 5.0, words)
    await world.until(lambda: world.leader(METADATA_GROUP) not in (None, leader), 1.0, "another one leads")
    said = [line for _, line in world.transcript._lines if f"broker {leader.id} " in line]
    assert said[-1] == f"broker {leader.id} has stopped"
    next(fault, None)
    assert leader.up


@effect
async def rolling_restart(world: World) -> None:
    starts = {b: b.starts for b in world.brokers.values()}
    _, fault = begun(world, "rolling_restart")
    least = 3
    for _ in range(400):
        await world.clock.sleep(0.05)
        least = min(least, sum(broker.up for broker in starts))
    next(fault, None)
    assert {broker.starts - before for broker, before in starts.items()} == {1}
    assert least == 2


@effect
async def crash_anywhere(world: World) -> None:
    words, fault = begun(world, "crash_anywhere")
    broker_id, steps, *_ = numbers(words)
    broker = world.brokers[broker_id]
    process, before = broker.process, world.loop.steps
    await world.until(lambda: not process.alive, 30.0, words)
    assert world.loop.steps - before >= steps
    assert broker.happened["crash between two steps"] == 1
    next(fault, None)


def test_a_crash_after_three_steps_comes_after_three() -> None:
    async def main(loop: VirtualLoop) -> list[str]:
        process, seen = SimProcess("a"), list[str]()
        process.crash_after(3, lambda: (seen.append("crash"), process.kill()))  # type: ignore[func-returns-value]
        for n in range(6):
            process.do(lambda n=n: loop.call_later(0.1 * (n + 1), lambda: seen.append(str(n))))
        await VirtualClock(loop).sleep(1.0)
        return seen

    assert run_virtually(main) == ["0", "1", "2", "crash"]


@effect
async def crash_at_point(world: World) -> None:
    words, _ = begun(world, "crash_at_point", "at: marks")
    broker = world.brokers[numbers(words)[0]]
    process, client = broker.process, world.client(random.Random(2))
    for n in range(40):
        if process.alive:
            await client.send("t", b"v", partition=n % 6)
    assert not process.alive
    assert broker.happened["crash at marks"] == 1


# ---- damage --------------------------------------------------------------------------------------------------


@effect
async def wipe(world: World) -> None:
    words, fault = begun(world, "wipe")
    broker = world.brokers[numbers(words)[0]]
    assert broker.files.paths() == []
    assert all(other.files.paths() for other in others(world, broker.id))
    assert not broker.up
    next(fault, None)
    assert await world.healthy(20.0) == ""
    assert len(broker.groups()) == len(others(world, broker.id)[0].groups())


@effect
async def old_disk(world: World) -> None:
    disks = {b.id: b.files for b in world.brokers.values()}
    words, fault = begun(world, "old_disk")
    broker = world.brokers[numbers(words)[0]]
    old, content = disks[broker.id], disks[broker.id].seen()
    await world.clock.sleep(3.0)
    assert broker.files is not old
    assert old.seen() == content
    next(fault, None)
    assert broker.files is old
    assert await world.healthy(20.0) == ""


@effect
async def lost_config(world: World) -> None:
    """The two are alone with the CONFIG that lists the new replica, and the others elect another leader."""
    words, fault = begun(world, "lost_config")
    leader, wiped, again = numbers(words)
    assert wiped == again
    assert len(world.brokers[wiped].files.paths()) < 5
    assert world.leader(METADATA_GROUP) is world.brokers[leader]
    await world.until(world.brokers[wiped].groups, 10.0, "the leader adds the wiped broker")
    await world.clock.sleep(0.1)
    assert all(not {*pair} & {leader, wiped} or {*pair} == {leader, wiped} for pair in await delivered(world, SEEN_S))
    next(fault, None)
    assert await world.healthy(20.0) == ""
    assert world.leader(METADATA_GROUP) is not None


@effect
async def remove_group(world: World) -> None:
    words, fault = begun(world, "remove_group")
    folder, broker_id = words.split(" of broker ")
    broker = world.brokers[int(broker_id)]
    lost = [path for path in broker.files.paths() if path.startswith(folder)]
    assert lost == []
    assert SyncedFiles(broker.files).node(folder) is None
    assert [p for p in others(world, broker.id)[0].files.paths() if p.startswith(folder)]
    next(fault, None)
    assert await world.healthy(20.0) == ""


async def flipped(world: World, kind: str) -> set[str]:
    """Return the files in which bits are flipped: those that the fault reports and no others, on the disk and in its
    cache.
    """
    before = {b.id: b.files.seen() for b in world.brokers.values()}
    words, _ = begun(world, kind)
    files = world.brokers[numbers(words)[0]].files
    wanted = {path: bytearray(content) for path, content in before[numbers(words)[0]].items()}
    for path, place, bit in ast.literal_eval(words.split(": ", 1)[1]):
        wanted[path][place] ^= 1 << bit
    assert files.seen() == wanted
    changed = {path for path, content in before[numbers(words)[0]].items() if wanted[path] != content}
    for path in changed:
        node = SyncedFiles(files).node(path)
        assert isinstance(node, Inode)
        assert node.durable == wanted[path]
    return changed


@effect
async def flip_bits(world: World) -> None:
    assert await flipped(world, "flip_bits")


@effect
async def flip_states(world: World) -> None:
    changed = await flipped(world, "flip_states")
    assert {path[-6:] for path in changed} == {".state"}


@effect
async def read_error(world: World) -> None:
    words, fault = begun(world, "read_error")
    broker = world.brokers[numbers(words)[0]]
    path = next(path for path in broker.files.paths() if path.endswith(".log"))
    with pytest.raises(StorageError, match="cannot read"):
        broker.files.open(path).read(0, 10)
    assert others(world, broker.id)[0].files.open(path).read(0, 10)
    next(fault, None)
    assert broker.files.open(path).read(0, 10)
    assert all(group.role is not Role.QUARANTINED for other in others(world, broker.id) for group in other.groups())
