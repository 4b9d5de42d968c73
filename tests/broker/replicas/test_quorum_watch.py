"""Topics in memory and topics synced at intervals, on whole Raft hosts: what survives each fault, and how groups
recover.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tests.raft.harness import Broker, Cluster, Ledger, simulate
from tests.raft.values import GROUP
from tests.seeds import first_of
from tinymq.base.errors import NotReady
from tinymq.base.topic_config import Storage
from tinymq.broker.replicas.quorum_watch import QuorumWatch
from tinymq.broker.replicas.recovery import Recovery
from tinymq.log import DISK, LogConfig
from tinymq.log.broker_files import boot_id
from tinymq.raft import Role

MEMORY = LogConfig(storage=Storage.MEMORY)
LAZY = replace(DISK, sync_interval_s=0.1)
WRITES = [b"%d" % i for i in range(5)]


class World:
    """A cluster whose brokers recover their groups automatically."""

    def __init__(self, cluster: Cluster, config: LogConfig) -> None:
        cluster.log_config = config
        self.cluster = cluster
        self.revivals: dict[int, QuorumWatch] = {}
        self.recovered = self.lost = 0

    async def start(self, *brokers: Broker) -> None:
        for broker in brokers or self.cluster.brokers.values():
            await broker.start()
            broker.process.do(lambda broker=broker: self.begin(broker))  # type: ignore[misc]

    def begin(self, broker: Broker) -> None:
        """The broker's process runs, with its groups open."""
        Recovery(broker.host, broker.clock, broker.rng.randbytes)
        self.revivals[broker.id] = QuorumWatch(broker.id, broker.host, broker.clock)
        self.revivals[broker.id].start()

    def end(self, how: str, *brokers: Broker) -> None:
        """`how`: kill or power_cut."""
        for broker in brokers or tuple(self.cluster.brokers.values()):
            revival = self.revivals.pop(broker.id)
            self.recovered += revival.recovered
            self.lost += revival.lost
            getattr(broker, how)()

    @property
    def counted(self) -> tuple[int, int]:
        """(recovered groups, recovered groups without any entry left), summed over all processes so far."""
        there = list(self.revivals.values())
        return self.recovered + sum(r.recovered for r in there), self.lost + sum(r.lost for r in there)

    async def write(self) -> None:
        for write in WRITES:
            await self.cluster.commit(write)
        await self.cluster.settle()

    async def goes_on(self, within_s: float = 8.0) -> None:
        await self.cluster.until(self.cluster.leaders, within_s, "somebody leads")
        await self.cluster.commit(b"on")
        await self.cluster.settle()
        await self.cluster.until(
            lambda: all(b.group().role in (Role.LEADER, Role.FOLLOWER) for b in self.cluster.running), 5.0, "all vote"
        )

    def new_history(self) -> None:
        """From here on entries may contradict earlier committed ones: everything was lost, as announced."""
        self.cluster.ledger = Ledger()
        for broker in self.cluster.brokers.values():
            broker.machines = {}


def with_world(body: Callable[[World], Awaitable[None]], config: LogConfig, seed: int = 0, nodes: int = 3) -> None:
    async def scenario(cluster: Cluster) -> None:
        world = World(cluster, config)
        await world.start()
        await cluster.until(cluster.leaders, 2.0)
        await body(world)

    simulate(scenario, seed, nodes=nodes, start=False)


def brokers(world: World) -> tuple[Broker, ...]:
    return tuple(world.cluster.brokers.values())


@pytest.mark.parametrize("how", ["kill", "power_cut"])
def test_in_memory_a_returning_broker_is_filled_and_votes_again(how: str) -> None:
    async def body(world: World) -> None:
        await world.write()
        for broker in brokers(world):
            world.end(how, broker)
            await world.start(broker)
            await world.goes_on()
            assert broker.group().replica.state.me.count == 1
            assert broker.machine().payloads[:5] == WRITES
        assert world.counted == (0, 0), "no recovery was needed"

    with_world(body, MEMORY)


@pytest.mark.parametrize("seed", first_of(range(6), 1))
@pytest.mark.parametrize("nodes", [1, 3, 5])
def test_in_memory_a_full_stop_loses_everything_and_the_topic_continues_empty(seed: int, nodes: int) -> None:
    async def body(world: World) -> None:
        for life in range(1, 4):
            await world.write()
            world.end("kill")
            world.new_history()
            await world.start()
            await world.goes_on()
            assert world.counted == (life, life)
            for broker in brokers(world):
                assert broker.machine().payloads == [b"on"]
                assert broker.group().high_watermark == 1, "offsets begin at 0"

    with_world(body, MEMORY, seed, nodes)


def test_in_memory_a_leader_without_a_majority_recovers_with_its_log() -> None:
    """It keeps hearing live brokers, but its CONFIG lists none of them."""

    async def body(world: World) -> None:
        await world.write()
        leader = world.cluster.leader()
        first, last = world.cluster.followers()
        term = leader.group().term
        world.cluster.pause(last.id)
        world.end("kill", first)
        await world.start(first)
        await world.cluster.run_for(0.2)
        world.end("kill", last)
        await world.start(last)
        await world.cluster.run_for(0.3)
        assert leader.group().replica.current.leading_term == term
        assert leader.group().commit_index < leader.group().log.last_index
        await world.cluster.until(lambda: world.counted == (1, 0), 5.0, "it is revived")
        await world.cluster.until(lambda: leader.machine().leading != term, 1.0)
        await world.goes_on()
        assert world.counted == (1, 0)
        assert leader.group().term > term
        assert all(b.machine().payloads == [*WRITES, b"on"] for b in brokers(world))

    with_world(body, MEMORY)


@pytest.mark.parametrize("seed", first_of(range(6), 1))
@pytest.mark.parametrize("leader_stays", [True, False])
def test_in_memory_one_survivor_of_three_keeps_everything(seed: int, leader_stays: bool) -> None:

    async def body(world: World) -> None:
        await world.write()
        leader = world.cluster.leader()
        stays = leader if leader_stays else world.cluster.followers()[seed % 2]
        gone = tuple(b for b in brokers(world) if b is not stays)
        world.end("kill", *gone)
        await world.start(*gone)
        await world.goes_on()
        assert world.counted == (1, 0)
        assert all(b.machine().payloads == [*WRITES, b"on"] for b in brokers(world))

    with_world(body, MEMORY, seed)


def test_in_memory_no_group_recovers_while_a_replica_is_silent() -> None:
    """The silent broker may have everything, including CONFIGs that the others never saw."""

    async def body(world: World) -> None:
        await world.write()
        silent = world.cluster.leader()
        gone = tuple(b for b in brokers(world) if b is not silent)
        world.cluster.isolate(silent.id)
        world.end("kill", *gone)
        await world.start(*gone)
        await world.cluster.run_for(10.0)
        assert not [b for b in gone if b.group().is_leader]
        assert world.counted == (0, 0)
        world.cluster.heal()
        await world.goes_on()
        assert all(b.machine().payloads == [*WRITES, b"on"] for b in brokers(world))

    with_world(body, MEMORY)


def test_recovery_waits_for_a_replaced_disk() -> None:
    """Its records may come back. Without this rule a higher count in the same data directory would look the same."""

    async def body(world: World) -> None:
        await world.write()
        one, *others = brokers(world)
        world.end("wipe", *others)
        await world.start(*others)
        await world.cluster.run_for(10.0)
        assert world.counted == (0, 0)
        assert one.group().log.last_index > 5

    with_world(body, LAZY)


def test_a_recovery_grant_is_durable_and_given_once() -> None:
    """A broker that prepares a recovery knows what another broker completed before, whichever messages arrive late."""

    async def body(world: World) -> None:
        await world.write()
        world.end("kill")
        await world.cluster.start()  # and no broker starts a recovery
        one, two, three = brokers(world)
        term = one.group().term + 100
        report = await two.process.run(two.group().promise_term(term, 1.0))
        assert (report.term, report.replica.count) == (term, 1)
        for again in (term, term - 1):
            with pytest.raises(NotReady):
                await two.process.run(two.group().promise_term(again, 1.0))
        replicas = [b.group().replica.state.me for b in brokers(world)]
        with pytest.raises(NotReady):
            three.group().force_leadership(three.group().term, replicas)
        two.kill()
        await two.start()
        assert two.store.votes.get(GROUP) == (term, None)
        with pytest.raises(NotReady):
            two.group().force_leadership(term, replicas)

    with_world(body, MEMORY)


def test_durable_topics_never_recover_automatically() -> None:
    async def body(world: World) -> None:
        await world.write()
        for broker in brokers(world)[1:]:
            world.end("kill", broker)
            broker.files.remove_tree("groups")
            broker.files.sync_directory("")
        await world.start(*brokers(world)[1:])
        await world.cluster.run_for(10.0)
        assert world.counted == (0, 0)

    with_world(body, DISK)


async def acknowledged_unsynced(world: World) -> None:
    """The last writes are committed, but perhaps on no disk."""
    await world.write()
    await world.cluster.run_for(0.3)
    for write in WRITES:
        await world.cluster.commit(write)
    assert world.cluster.leader().group().log.synced_index < world.cluster.leader().group().log.durable_index


@pytest.mark.parametrize("seed", first_of(range(10), 2))
def test_synced_at_intervals_a_kill_of_all_loses_nothing(seed: int) -> None:
    async def body(world: World) -> None:
        await acknowledged_unsynced(world)
        world.end("kill")
        await world.start()
        await world.goes_on()
        assert world.counted == (0, 0)
        assert all(b.machine().payloads == [*WRITES, *WRITES, b"on"] for b in brokers(world))

    with_world(body, LAZY, seed)


@pytest.mark.parametrize("seed", first_of(range(10), 2))
def test_synced_at_intervals_one_power_cut_loses_nothing(seed: int) -> None:
    """The broker that lost power may lack entries that it acknowledged; then another broker dies."""
    with_world(check_one_power_cut_then_another_gone(random.Random(seed)), LAZY, seed)


def check_one_power_cut_then_another_gone(rng: random.Random) -> Callable[[World], Awaitable[None]]:
    async def body(world: World) -> None:
        cluster = world.cluster
        await world.write()
        await cluster.run_for(0.3)
        leader = cluster.leader()
        behind, holder = sorted(cluster.followers(), key=lambda b: rng.random())
        cluster.isolate(behind.id)
        for write in WRITES:  # two of three have it, none has synced it
            await cluster.commit(write)
        world.end("power_cut", holder)
        world.end("kill", leader)
        cluster.heal()
        await world.start(holder)
        # without the leader: a lagging broker must not lead with the vote of the broker that lost entries
        await cluster.run_for(4.0)
        await world.start(leader)
        await world.goes_on()
        assert world.counted == (0, 0)
        assert all(b.machine().payloads == [*WRITES, *WRITES, b"on"] for b in brokers(world))

    return body


def test_mutant_an_identity_kept_over_a_power_cut_loses_acknowledged_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant that the test above notices."""
    monkeypatch.setattr("tinymq.log.engine.store.after_boot", lambda mark: mark)
    assert boot_id.after_boot is not None
    for seed in range(20):
        try:
            with_world(check_one_power_cut_then_another_gone(random.Random(seed)), LAZY, seed)
        except AssertionError:
            return
    pytest.fail("it was not noticed in 20 seeds")


@pytest.mark.parametrize("seed", first_of(range(20), 4))
def test_synced_at_intervals_a_power_cut_of_all_loses_an_interval_at_most(seed: int) -> None:
    async def body(world: World) -> None:
        await acknowledged_unsynced(world)
        world.end("power_cut")
        world.new_history()
        await world.start()
        await world.goes_on()
        assert world.counted == (1, 0)
        payloads = brokers(world)[0].machine().payloads
        assert payloads[:5] == WRITES, "synced records are there"
        assert payloads[5:-1] == WRITES[: len(payloads) - 6], "and a prefix of the rest"
        assert all(b.machine().payloads == payloads for b in brokers(world))

    with_world(body, LAZY, seed)


@pytest.mark.parametrize("seed", first_of(range(10), 2))
def test_synced_at_intervals_two_power_cuts_lose_nothing_that_the_third_has(seed: int) -> None:
    async def body(world: World) -> None:
        await acknowledged_unsynced(world)
        await world.cluster.settle()
        gone = tuple(random.Random(seed).sample(brokers(world), 2))
        world.end("power_cut", *gone)
        await world.start(*gone)
        await world.goes_on()
        assert all(b.machine().payloads == [*WRITES, *WRITES, b"on"] for b in brokers(world))

    with_world(body, LAZY, seed)


def test_synced_at_intervals_a_leader_with_a_hanging_disk_transfers_its_leadership() -> None:
    """Nothing waits for its syncs, but entries that were never written are noticed."""

    async def body(world: World) -> None:
        cluster = world.cluster
        await world.write()
        leader = cluster.leader()
        cluster.background(cluster.load())
        leader.disk.hung = cluster.loop.create_future()
        await cluster.until(lambda: cluster.leaders() and cluster.leader() is not leader, 4.0, "another one leads")
        leader.disk.hung.set_result(None)
        leader.disk.hung = None
        cluster.end_background()
        await cluster.settle()
        await cluster.check_logs()

    with_world(body, LAZY)
