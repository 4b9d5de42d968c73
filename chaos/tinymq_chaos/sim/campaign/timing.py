"""Measure in virtual time how soon a lost leader is replaced, and how many elections are unwanted.

    python -m tinymq_chaos.sim.campaign.timing           200 seeds a row, a few minutes
    python -m tinymq_chaos.sim.campaign.timing 20        20 seeds a row

Each run has the complete Raft hosts of three brokers, on simulated disks and links. A *failover* begins with the fault
and ends when another leader has acknowledged a write. An election is *unwanted* when every broker was up, connected and
running.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.raft.harness import Broker, Cluster, simulate
from tests.raft.values import GROUP
from tinymq.base.errors import NotLeader
from tinymq_chaos.sim.virtual.transcript import Transcript

SEEDS = 200
STEADY_SEEDS = 20
STEADY_S = 60.0  # virtual seconds under load for each seed
LIMIT_S = 20.0

Change = Callable[[Cluster], None]
Fault = Callable[[Cluster, Broker], None]


@dataclass(frozen=True, slots=True)
class TimingRow:
    """One scenario over many seeds. Seconds are virtual; None where no leader was replaced."""

    scenario: str
    seeds: int
    p50_s: float | None
    p99_s: float | None
    max_s: float | None
    elections: int  # unwanted ones
    held_s: float | None = None  # the longest time for which the old leader believed that it leads


# ---- what happens ------------------------------------------------------------------------------------------


def kill(cluster: Cluster, leader: Broker) -> None:
    """kill -9: the machine stays up and refuses connections."""
    leader.kill()


def power_loss(cluster: Cluster, leader: Broker) -> None:
    """Cut the power: the broker neither answers nor refuses connections."""
    cluster.pause(leader.id)


def stop_signal(cluster: Cluster, leader: Broker) -> None:
    """SIGSTOP, and SIGCONT after 6 s."""
    cluster.pause(leader.id)
    cluster.clock.call_later(6.0, lambda: cluster.resume(leader.id))


def isolation(cluster: Cluster, leader: Broker) -> None:
    cluster.isolate(leader.id)


def deaf(cluster: Cluster, leader: Broker) -> None:
    """Cut the leader off from all incoming messages."""
    for other in cluster.brokers:
        if other != leader.id:
            cluster.cut(other, leader.id, both=False)


def mute(cluster: Cluster, leader: Broker) -> None:
    """Cut the leader off from all outgoing messages."""
    for other in cluster.brokers:
        if other != leader.id:
            cluster.cut(leader.id, other, both=False)


# ---- conditions --------------------------------------------------------------------------------------------


def healthy(cluster: Cluster) -> None:
    pass


def loaded(cluster: Cluster) -> None:
    cluster.background(cluster.load(pause_s=0.02))


def delayed(seconds: float, jitter_s: float) -> Change:
    def change(cluster: Cluster) -> None:
        for a in cluster.brokers:
            for b in cluster.brokers:
                if a != b:
                    cluster.network.delay(a, b, seconds, jitter_s, both=False)

    return change


def slow_disks(cluster: Cluster) -> None:
    """Make each sync, and each write before it, take 50 ms."""
    for broker in cluster.brokers.values():
        broker.disk.delay_s = (0.02, 0.03)


def drifting(cluster: Cluster) -> None:
    """Make clocks run up to 5 % fast or slow."""
    for broker, rate in zip(cluster.brokers.values(), cluster.rng.sample((0.95, 1.0, 1.05), 3), strict=False):
        broker.clock.drift(rate)


def stalls(longest_s: float) -> Change:
    """Stall every broker's loop now and then, as a long validation or a busy machine does."""

    def change(cluster: Cluster) -> None:
        for broker in cluster.brokers.values():
            cluster.background(_stall(cluster, broker, longest_s))

    return change


async def _stall(cluster: Cluster, broker: Broker, longest_s: float) -> None:
    while True:
        await cluster.run_for(cluster.rng.uniform(0.5, 3.0))
        broker.process.pause()
        await cluster.run_for(cluster.rng.uniform(0.02, longest_s))
        broker.process.resume()


def both(*changes: Change) -> Change:
    def change(cluster: Cluster) -> None:
        for each in changes:
            each(cluster)

    return change


def suddenly(change: Change, after_s: float = 20.0, until_s: float = 40.0) -> Change:
    def begin(cluster: Cluster) -> None:
        cluster.clock.call_later(after_s, lambda: change(cluster))
        cluster.clock.call_later(until_s, lambda: delayed(0.0002, 0.0005)(cluster))

    return begin


FAILOVERS: dict[str, tuple[Change, Fault]] = {
    "killed": (healthy, kill),
    "power loss": (healthy, power_loss),
    "SIGSTOP for 6 s": (healthy, stop_signal),
    "isolated": (healthy, isolation),
    "deaf": (healthy, deaf),
    "mute": (healthy, mute),
    "power loss under load": (loaded, power_loss),
    "killed, 50 ms syncs": (slow_disks, kill),
    "power loss, 50 ms syncs": (slow_disks, power_loss),
    "power loss, 5 % drift": (drifting, power_loss),
    "killed, 100 ms + 0..100 delay": (delayed(0.1, 0.1), kill),
    "power loss, 100 ms + 0..100 delay": (delayed(0.1, 0.1), power_loss),
    "isolated, 100 ms + 0..100 delay": (delayed(0.1, 0.1), isolation),
}

STEADY: dict[str, Change] = {
    "healthy": healthy,
    "50 ms syncs": slow_disks,
    "100 ms + 0..100 delay": delayed(0.1, 0.1),
    "100 ms + 0..100 delay, suddenly": suddenly(delayed(0.1, 0.1)),
    "100 ms + 0..100 delay, 50 ms syncs": both(delayed(0.1, 0.1), slow_disks),
    "300 ms + 0..300 delay": delayed(0.3, 0.3),
    "300 ms + 0..300 delay, suddenly": suddenly(delayed(0.3, 0.3)),
    "5 % drift": drifting,
    "stalls up to 300 ms": stalls(0.3),
    "stalls up to 300 ms, 100 ms + 0..100 delay": both(delayed(0.1, 0.1), stalls(0.3)),
    "stalls up to 600 ms": stalls(0.6),
}


# ---- measuring ---------------------------------------------------------------------------------------------


def failovers(scenario: str, world: Change, fault: Fault, seeds: Sequence[int]) -> TimingRow:
    took: list[float] = []
    held: list[float] = []
    elections = 0

    async def run(cluster: Cluster) -> None:
        nonlocal elections
        world(cluster)
        await cluster.commit(b"x", within_s=LIMIT_S)
        await cluster.run_for(cluster.rng.uniform(4.0, 5.0))
        before = len(cluster.ledger.leaders)
        leader = cluster.leader()
        machine = leader.machine()
        begun = cluster.loop.time()
        fault(cluster, leader)
        cluster.background(_until_it_steps_down(cluster, leader, machine.follow, held))
        await _next_write(cluster, leader)
        took.append(cluster.loop.time() - begun)
        cluster.end_background()
        await cluster.run_for(9.0)
        elections += len(cluster.ledger.leaders) - before - 1

    for seed in seeds:
        simulate(run, seed)
    took.sort()
    return TimingRow(
        scenario,
        len(seeds),
        p50_s=took[len(took) // 2],
        p99_s=took[min(len(took) - 1, int(len(took) * 0.99))],
        max_s=took[-1],
        elections=elections,
        held_s=max(held, default=None),
    )


async def _until_it_steps_down(cluster: Cluster, leader: Broker, follow: object, held: list[float]) -> None:
    """Note how long a leader that keeps running believes that it leads."""
    begun = cluster.loop.time()
    while leader.up and not leader.process.paused:
        if leader.machine().leading is None:
            held.append(cluster.loop.time() - begun)
            return
        await cluster.run_for(0.005)


async def _next_write(cluster: Cluster, old: Broker) -> None:
    """Write until another leader has acknowledged it, like a client that retries at once."""
    begun = cluster.loop.time()
    while cluster.loop.time() - begun < LIMIT_S:
        for broker in cluster.leaders():
            if broker is old:
                continue
            try:
                position = broker.propose(b"y")
            except NotLeader:
                continue
            machine = broker.machine()
            while broker.up and machine.index < position.index and position not in machine.unknown:
                await cluster.run_for(0.001)
            if position not in machine.unknown:
                return
        await cluster.run_for(0.002)
    raise AssertionError(f"nobody leads {LIMIT_S} s after the fault\n{cluster.describe()}")


def steady(scenario: str, world: Change, seeds: Sequence[int]) -> TimingRow:
    elections = 0

    async def run(cluster: Cluster) -> None:
        nonlocal elections
        await cluster.commit(b"x")
        before = len(cluster.ledger.leaders)
        world(cluster)
        cluster.background(cluster.load(pause_s=0.05))
        await cluster.run_for(STEADY_S)
        elections += max(cluster.brokers[b].group(GROUP).term for b in cluster.brokers) - before
        cluster.end_background()

    for seed in seeds:
        simulate(run, seed)
    return TimingRow(scenario, len(seeds), None, None, None, elections)


def measure(
    seeds: int = SEEDS, steady_seeds: int = STEADY_SEEDS, on_row: Callable[[TimingRow], None] = print
) -> list[TimingRow]:
    """Run all scenarios, each with its seeds; call `on_row` after each."""
    rows = []
    for name, (world, fault) in FAILOVERS.items():
        rows.append(failovers(name, world, fault, range(seeds)))
        on_row(rows[-1])
    for name, world in STEADY.items():
        rows.append(steady(name, world, range(steady_seeds)))
        on_row(rows[-1])
    return rows


def print_row(row: TimingRow) -> None:
    def ms(seconds: float | None) -> str:
        return "-" if seconds is None else f"{seconds * 1000:.0f}"

    print(
        f"{row.scenario:<46} {row.seeds:>5} {ms(row.p50_s):>7} {ms(row.p99_s):>7} {ms(row.max_s):>7}"
        f" {ms(row.held_s):>9} {row.elections:>9}",
        flush=True,
    )


def print_table(seeds: int) -> None:
    """Print each row, over `seeds` seeds, or a tenth of them for scenarios that take a minute."""
    print(f"{'ms of virtual time':<46} {'seeds':>5} {'p50':>7} {'p99':>7} {'max':>7} {'held':>9} {'unwanted':>9}")
    measure(seeds, max(1, seeds // 10), print_row)


def main() -> None:
    with Transcript().listening():  # log lines of brokers would stand between the rows
        print_table(int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS)


if __name__ == "__main__":
    main()
