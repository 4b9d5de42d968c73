"""A storm: everything that can happen to brokers, links and disks, at random moments, followed by calm.

The faults are rows of tinymq_chaos/faults.py; a storm draws from them with the cluster's own random source.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from tests.raft.harness import Broker, Cluster, Recorder, Scenario
from tinymq.base.errors import StorageError
from tinymq.raft import Role
from tinymq.raft.net.transport import Channel
from tinymq_chaos.faults import FAULTS as FAULT_ROWS
from tinymq_chaos.sim.virtual.event_loop import ProcessKilled

Fault = Callable[[Cluster], None]


def _some(cluster: Cluster, brokers: list[Broker]) -> Broker | None:
    return cluster.rng.choice(brokers) if brokers else None


def _up(cluster: Cluster) -> list[Broker]:
    return [b for b in cluster.brokers.values() if b.up]


def _started(cluster: Cluster) -> list[Broker]:
    """Return the brokers that run or are about to."""
    return [b for b in cluster.brokers.values() if not b.process_is_gone]


def _restart_later(cluster: Cluster, broker: Broker) -> None:
    """Start the broker again after a while, unless it runs already."""

    def start() -> None:
        if broker.process_is_gone:
            cluster.say(f"broker {broker.id} starts")
            cluster.background(_start(cluster, broker))

    cluster.clock.call_later(cluster.rng.choice((0.0, 0.05, 0.5, 1.0, 3.0)), start)


async def _start(cluster: Cluster, broker: Broker) -> None:
    try:
        await broker.start()
    except StorageError as error:  # the disk is still broken: repair it, and try again
        cluster.say(f"broker {broker.id} cannot start: {error}")
        broker.kill()
        _restart_later(cluster, broker)


def cut_link(cluster: Cluster) -> None:
    a, b = cluster.rng.sample(sorted(cluster.brokers), 2)
    cluster.cut(a, b, both=cluster.rng.random() < 0.6)


def isolate(cluster: Cluster) -> None:
    leader = cluster.leaders(cluster.groups[0])
    cluster.isolate(
        leader[-1].id if leader and cluster.rng.random() < 0.5 else cluster.rng.choice(sorted(cluster.brokers))
    )


def heal(cluster: Cluster) -> None:
    cluster.heal()


def reset(cluster: Cluster) -> None:
    a, b = cluster.rng.sample(sorted(cluster.brokers), 2)
    cluster.say(f"connections of {a} and {b} are reset")
    cluster.network.reset(a, b)


def reset_channel(cluster: Cluster) -> None:
    broker = _some(cluster, _up(cluster))
    if broker is not None:
        other = cluster.rng.choice([b for b in cluster.brokers if b != broker.id])
        channel = cluster.rng.choice(list(Channel))
        cluster.say(f"broker {broker.id} loses its {channel.name} connection to {other}")
        broker.process.call(lambda: broker.transport.reset(other, channel))


def latency(cluster: Cluster) -> None:
    a, b = cluster.rng.sample(sorted(cluster.brokers), 2)
    seconds, jitter_s = cluster.rng.choice(((0.0002, 0.0005), (0.01, 0.02), (0.05, 0.2), (0.3, 0.3)))
    cluster.say(f"{a} -> {b} takes {seconds} s")
    cluster.network.delay(a, b, seconds, jitter_s, both=cluster.rng.random() < 0.5)


def duplicate(cluster: Cluster) -> None:
    a, b = cluster.rng.sample(sorted(cluster.brokers), 2)
    cluster.network.duplicate_next(a, b, count=cluster.rng.randint(1, 5))


def kill(cluster: Cluster) -> None:
    broker = _some(cluster, _started(cluster))
    if broker is not None:
        broker.kill()
        _restart_later(cluster, broker)


def power_cut(cluster: Cluster) -> None:
    broker = _some(cluster, _started(cluster))
    if broker is not None:
        broker.power_cut()
        _restart_later(cluster, broker)


def power_cut_all(cluster: Cluster) -> None:
    for broker in _started(cluster):
        broker.power_cut()
        _restart_later(cluster, broker)


def pause(cluster: Cluster) -> None:
    broker = _some(cluster, cluster.running)
    if broker is not None:
        cluster.pause(broker.id)
        cluster.clock.call_later(cluster.rng.choice((0.1, 0.5, 1.0, 2.0)), lambda: cluster.resume(broker.id))


def slow_disk(cluster: Cluster) -> None:
    broker = _some(cluster, _up(cluster))
    if broker is not None:
        broker.disk.delay_s = cluster.rng.choice(((0.00005, 0.002), (0.005, 0.03), (0.05, 0.3)))


def fail_sync(cluster: Cluster) -> None:
    """A sync fails, or the disk is full; later the broker is started again, on a disk that works."""
    broker = _some(cluster, _up(cluster))
    if broker is None:
        return
    cluster.say(f"broker {broker.id}'s disk breaks")
    broker.disk_is_broken = True
    if cluster.rng.random() < 0.3:
        broker.files.disk_full(cluster.rng.randrange(20_000))
    else:
        broker.files.fail_sync(cluster.rng.choice(("groups/*", "groups/*", "ballots-a", "ballots-b", "marks")))
    cluster.clock.call_later(cluster.rng.uniform(0.1, 3.0), lambda: _mend(cluster, broker))


def _mend(cluster: Cluster, broker: Broker) -> None:
    if broker.disk_is_broken:
        kill_or_cut = broker.kill if cluster.rng.random() < 0.5 else broker.power_cut
        kill_or_cut()
        _restart_later(cluster, broker)


def stop(cluster: Cluster) -> None:
    broker = _some(cluster, cluster.running)
    if broker is None:
        return
    cluster.say(f"broker {broker.id} begins a clean stop")

    async def stop() -> None:
        with contextlib.suppress(ProcessKilled):  # another fault may kill it meanwhile, and starts it again
            await broker.stop()
            _restart_later(cluster, broker)

    cluster.background(stop())


def transfer(cluster: Cluster) -> None:
    group = cluster.rng.choice(cluster.groups)
    leader = _some(cluster, cluster.leaders(group))
    if leader is not None:
        leader.process.do(lambda: leader.host.transfer(group))


def wall_jump(cluster: Cluster) -> None:
    broker = cluster.rng.choice(list(cluster.brokers.values()))
    broker.skew_us = cluster.rng.choice((0, -3_600_000_000, 3_600_000_000))
    broker.rate = cluster.rng.choice((0.95, 1.0, 1.05))  # takes effect at its next start
    if broker.up:
        broker.clock.wall_skew_us = broker.skew_us


ACTIONS: tuple[Fault, ...] = (
    cut_link, isolate, heal, reset, reset_channel, latency, duplicate, kill, power_cut, power_cut_all, pause,
    slow_disk, fail_sync, stop, transfer, wall_jump,
)  # fmt: skip
"""A storm draws from these, in this order. Every fault except `heal` has a row with a weight in tinymq_chaos/faults.py.
"""

HEAL_WEIGHT = 6


def _weight(action: Fault) -> int:
    if action is heal:
        return HEAL_WEIGHT
    weight = FAULT_ROWS[action.__name__].replicas
    assert isinstance(weight, int), f"the fault table has the reason why {action.__name__} is not run here: {weight}"
    return weight


FAULTS: dict[Fault, int] = {action: _weight(action) for action in ACTIONS}


async def storm(
    cluster: Cluster,
    seconds: float,
    pause_s: float = 0.4,
    faults: dict[Fault, int] = FAULTS,
    load_pause_s: float = 0.01,
) -> None:
    """Draw from `faults` for `seconds`, under load."""
    load = asyncio.create_task(cluster.load(load_pause_s))
    end = cluster.loop.time() + seconds
    kinds, weights = list(faults), list(faults.values())
    while cluster.loop.time() < end:
        cluster.rng.choices(kinds, weights)[0](cluster)
        await cluster.run_for(cluster.rng.expovariate(1 / pause_s))
        assert not load.done() or load.result()
    load.cancel()


async def calm(cluster: Cluster, within_s: float = 20.0) -> None:
    """End every fault, then check that all replicas agree, that nothing was lost, and that the group accepts writes."""
    cluster.heal()
    for broker in cluster.brokers.values():
        for other in cluster.brokers:
            cluster.network.delay(broker.id, other, 0.0002, 0.0005)
        broker.rate, broker.skew_us = 1.0, 0
        cluster.resume(broker.id)
        if broker.up:
            broker.disk.delay_s = (0.00005, 0.002)
    await cluster.run_for(4.0)  # start every broker again, and repair the disks
    await cluster.until(cluster.all_up, within_s, "all brokers are up")
    for group in cluster.groups:
        await cluster.settle(group, within_s)
        before = cluster.ledger.end(group)
        await cluster.commit(b"after the storm", group)
        await cluster.settle(group)
        assert cluster.ledger.end(group) > before
        await cluster.check_logs(group)
        for broker in cluster.brokers.values():
            assert broker.group(group).role in (Role.LEADER, Role.FOLLOWER), cluster.describe()
            check_recorder(broker.machine(group))


def check_recorder(machine: Recorder) -> None:
    """Check that every waiter got an answer, and that offsets are dense."""
    assert not [p for p in machine.waiting.values() if p.index <= machine.index]
    for before, after in zip(machine.entries, machine.entries[1:], strict=False):
        assert after.header.base_offset == before.header.next_offset
        assert after.header.prev_crc == before.header.header_crc
        assert after.header.append_time_us >= before.header.append_time_us


def stormy(seconds: float) -> Scenario:
    """A scenario: a storm, then calm."""

    async def scenario(cluster: Cluster) -> None:
        await storm(cluster, seconds)
        await calm(cluster)

    return scenario
