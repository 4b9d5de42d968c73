"""Hazard 13: no leader answers a stale read, even if events elsewhere have deposed it. A read writes nothing, and every
read ends.
"""

from __future__ import annotations

import pytest

from tests.raft.faults import FAULTS, calm, storm
from tests.raft.harness import Broker, Cluster, simulate
from tests.raft.test_quiet import rest
from tests.raft.values import GROUP
from tests.seeds import first_of
from tinymq.base.errors import DeadlineExceeded, NotLeader, TinymqError
from tinymq.proto import peer_pb2 as pb
from tinymq.raft import Role
from tinymq.raft.replica.current_role import CurrentRole
from tinymq.raft.roles.leadership import Leadership
from tinymq.raft.rules.read_index import Answer
from tinymq_chaos.sim.virtual.event_loop import ProcessKilled

TIMEOUT_S = 2.0


class Reads:
    """Reads on every broker that believes it leads. None may miss an entry acknowledged before it began."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.stale: list[str] = []
        self.good = 0
        self.ends_s: list[float] = []
        self.errors: list[TinymqError] = []

    async def read(self, broker: Broker) -> None:
        cluster = self.cluster
        least = max(cluster.ledger.acknowledged.get(GROUP, {0}), default=0)
        begun = cluster.loop.time()
        try:
            index = await broker.process.run(broker.group().read_index(TIMEOUT_S))
        except (NotLeader, DeadlineExceeded) as error:
            self.errors.append(error)
        except ProcessKilled:
            return
        else:
            self.good += 1
            if index < least:
                self.stale.append(f"broker {broker.id} reads up to {index}, and {least} was acknowledged before")
        self.ends_s.append(cluster.loop.time() - begun)

    def begin(self) -> None:
        for broker in self.cluster.running:
            if broker.host.groups and broker.group().is_leader:
                self.cluster.background(self.read(broker))

    async def keep_on(self, pause_s: float = 0.02) -> None:
        while True:
            self.begin()
            await self.cluster.run_for(self.cluster.rng.uniform(0, 2 * pause_s))


def test_a_read_includes_acknowledged_records_writes_nothing_and_lets_the_group_rest() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await rest(cluster)
        leader = cluster.leader()
        last = leader.group().log.last_index
        begun = cluster.loop.time()
        assert await leader.process.run(leader.group().read_index(1.0)) == last
        assert cluster.loop.time() - begun < 0.01
        await rest(cluster)
        assert leader.group().log.last_index == last

    simulate(scenario)


@pytest.mark.parametrize("leave", ["close_group", "delete_group"])
def test_a_read_ends_when_its_replica_leaves_the_group(leave: str) -> None:
    """A topic is deleted on one broker after the other, so that its leader waits for brokers that forgot it."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        leader = cluster.leader()
        others = [broker for broker in cluster.running if broker is not leader]
        for broker in others:
            await broker.process.run(getattr(broker.host, leave)(GROUP))
        group = leader.group()
        reads = Reads(cluster)
        reads.begin()
        await cluster.run_for(0.01)
        begun = cluster.loop.time()
        await leader.process.run(getattr(leader.host, leave)(GROUP))
        await cluster.until(lambda: reads.ends_s, 5.0)
        assert [type(error) for error in reads.errors] == [NotLeader]
        assert cluster.loop.time() - begun < 0.1
        with pytest.raises(NotLeader):
            await leader.process.run(group.read_index(TIMEOUT_S))

    simulate(scenario)


def test_a_group_of_one_reads_without_asking_or_waiting() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await rest(cluster)
        [leader] = cluster.running
        for _ in range(3):
            begun = cluster.loop.time()
            assert await leader.process.run(leader.group().read_index(1.0)) == leader.group().log.last_index
            assert cluster.loop.time() == begun, "no time passes"
        await rest(cluster)

    simulate(scenario, nodes=1)


def test_reads_of_one_moment_share_a_round_and_those_after_it_the_next() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await rest(cluster)
        rounds: list[int] = []

        def note(a: int, b: int, channel: object, head: pb.Peer, body: bytes) -> None:
            if head.WhichOneof("message") == "commit_notice" and head.commit_notice.read_id:
                rounds.append(head.commit_notice.read_id)

        cluster.network.on_delivered = note
        reads = Reads(cluster)
        for _ in range(100):
            reads.begin()
        await cluster.run_for(0.0001)
        for _ in range(100):
            reads.begin()
        await cluster.run_for(0.05)
        assert reads.good == 200
        assert sorted(rounds) == [1, 1, 2, 2]

    simulate(scenario)


def test_a_follower_names_the_leader() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        follower = cluster.followers()[0]
        with pytest.raises(NotLeader) as refused:
            await follower.process.run(follower.group().read_index(1.0))
        assert refused.value.detail["leader"] == str(cluster.leader().id)

    simulate(scenario)


async def isolated_leader(cluster: Cluster) -> Reads:
    """It still believes that it leads, while another leader accepts writes."""
    await cluster.commit(b"x")
    await cluster.settle()
    reads = Reads(cluster)
    old = cluster.leader()
    cluster.isolate(old.id)
    reading = cluster.loop.create_task(reads.keep_on())
    await cluster.until(lambda: [b for b in cluster.leaders() if b is not old], 2.0)
    for _ in range(30):
        await cluster.commit(b"y")
        await cluster.run_for(0.05)
    reading.cancel()
    assert not old.group().is_leader, "within 2 s"
    await cluster.run_for(TIMEOUT_S)
    return reads


@pytest.mark.parametrize("seed", first_of(range(10), 2))
def test_an_isolated_leader_refuses_reads(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        reads = await isolated_leader(cluster)
        assert reads.stale == []
        assert reads.good > 20, "the new leader's"
        assert [e for e in reads.errors if isinstance(e, NotLeader)], "as soon as it steps down"
        assert max(reads.ends_s) <= TIMEOUT_S + 0.001

    simulate(scenario, seed)


def test_mutant_an_isolated_leader_reads_stale_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a read index round, an isolated leader answers reads from its stale state."""

    def confirm_reads(self: Leadership) -> None:
        read_id = self.reads.begin(self.state.env.now())
        for peer in self.replication.progress:
            self.reads.answered(peer, read_id or 0)

    monkeypatch.setattr(Leadership, "confirm_reads", confirm_reads)
    monkeypatch.setattr(
        CurrentRole, "check_quorum", lambda self: None
    )  # otherwise it steps down just before the others elect

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        reads = Reads(cluster)
        old = cluster.leader()
        cluster.isolate(old.id)
        await cluster.until(lambda: [b for b in cluster.leaders() if b is not old], 2.0)
        await cluster.commit(b"y")
        reads.begin()
        await cluster.run_for(0.1)
        assert reads.stale

    simulate(scenario)


async def just_elected(cluster: Cluster) -> Reads:
    """The new leader has its predecessor's last acknowledged entry, but does not know yet that it is committed."""
    await cluster.commit(b"x")
    await cluster.settle()
    reads = Reads(cluster)
    old = cluster.leader()
    position = old.propose(b"y")
    while old.machine().index < position.index:
        await cluster.run_for(0.0001)
    old.kill()
    while not any(b.group().is_leader for b in cluster.running):
        await cluster.run_for(0.0001)
    for _ in range(5):
        reads.begin()
        await cluster.run_for(0.0003)
    await cluster.run_for(0.5)
    assert reads.good == 5
    return reads


def test_a_new_leader_reads_its_predecessors_acknowledged_records() -> None:
    async def scenario(cluster: Cluster) -> None:
        assert (await just_elected(cluster)).stale == []

    for seed in range(10):
        simulate(scenario, seed)


def test_mutant_a_new_leader_reads_before_its_first_entry_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_index(self: Leadership, answer: Answer) -> None:
        self.reads.ask(self.state.commit_index, answer)
        self.state.env.wake()

    monkeypatch.setattr(Leadership, "read_index", read_index)
    stale: list[str] = []

    async def scenario(cluster: Cluster) -> None:
        stale.extend((await just_elected(cluster)).stale)

    for seed in range(10):
        simulate(scenario, seed)
    assert stale


@pytest.mark.parametrize("seed", first_of(range(5), 2))
def test_a_lost_read_id_is_followed_by_the_next(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await rest(cluster)
        leader = cluster.leader()
        for follower in cluster.followers():
            cluster.network.drop_next(
                leader.id, follower.id, count=2, matching=lambda m: m.WhichOneof("message") == "commit_notice"
            )
        begun = cluster.loop.time()
        await leader.process.run(leader.group().read_index(1.0))
        assert 0.1 < cluster.loop.time() - begun < 0.4

    simulate(scenario, seed)


def test_a_follower_that_has_only_voted_confirms_a_read_without_getting_the_whole_log() -> None:
    """The control channel overtakes the bulk channel: the request comes before the leader's first entry of its term."""

    async def scenario(cluster: Cluster) -> None:
        for i in range(30):
            await cluster.commit(b"%d" % i)
        await cluster.settle()
        old, new = cluster.leader(), cluster.followers()[0]
        other = cluster.followers()[1]
        sent: list[int] = []

        def note(a: int, b: int, channel: object, head: pb.Peer, body: bytes) -> None:
            if head.WhichOneof("message") == "append" and (a, b) == (new.id, other.id):
                sent.append(head.append.prev_index)

        cluster.network.on_delivered = note
        cluster.network.drop_next(new.id, other.id, matching=lambda m: m.WhichOneof("message") == "append")
        last = new.group().log.last_index
        old.kill()
        reads = Reads(cluster)
        while not new.group().is_leader:
            await cluster.run_for(0.0001)
        reads.begin()
        await cluster.run_for(0.5)
        assert reads.good == 1
        assert min(sent) >= last - 1, sent
        await cluster.settle()

    simulate(scenario)


def test_a_read_in_an_ended_term_is_refused() -> None:
    """It was isolated while another leader was elected, and now reaches only a follower of that leader."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await rest(cluster)
        old = cluster.leader()
        cluster.pause(old.id)
        await cluster.until(lambda: cluster.leaders(), 2.0)
        await rest(cluster)
        cluster.cut(old.id, cluster.leader().id)
        cluster.resume(old.id)
        assert old.group().is_leader
        reads = Reads(cluster)
        cluster.background(reads.read(old))
        await cluster.run_for(0.01)
        assert [type(error) for error in reads.errors] == [NotLeader]

    simulate(scenario)


def test_a_learners_answer_proves_nothing() -> None:
    """Hazard 22: the learner may have voted for another leader and lost that vote."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await rest(cluster)
        leader = cluster.leader()
        wiped, cut_off = cluster.followers()
        cluster.isolate(cut_off.id)
        wiped.wipe()
        await wiped.start()
        await cluster.run_for(1.0)
        assert (leader.group().is_leader, wiped.group().role) == (True, Role.LEARNER)
        with pytest.raises(DeadlineExceeded):
            await leader.process.run(leader.group().read_index(1.0))
        cluster.heal()
        await leader.process.run(leader.group().read_index(1.0))

    simulate(scenario)


CUTS = {f: n for f, n in FAULTS.items() if f.__name__ != "wall_jump"}


async def stormy_reads(cluster: Cluster, seconds: float) -> Reads:
    reads = Reads(cluster)
    reading = cluster.loop.create_task(reads.keep_on())
    await storm(cluster, seconds, faults=CUTS)
    reading.cancel()
    await calm(cluster)
    await cluster.run_for(TIMEOUT_S)
    return reads


@pytest.mark.parametrize("seed", first_of(range(5), 2))
def test_reads_in_a_storm_are_never_stale_and_all_end(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        reads = await stormy_reads(cluster, 8.0)
        assert reads.stale == []
        assert reads.good
        late = TIMEOUT_S + 2.0  # a paused process cannot end its reads
        assert max(reads.ends_s) <= late + 0.01

    simulate(scenario, seed)
