"""A follower behind its leader's first entry installs a snapshot, while the group accepts writes."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest

from tests.raft.harness import LIMITS, Broker, Cluster, Recorder, simulate
from tests.raft.traffic import listen
from tests.raft.values import GROUP, ListLog, chain
from tests.seeds import first_of
from tinymq.format.entry import crc32c
from tinymq.log.files.layout import SEGMENT, group_directory
from tinymq.proto import peer_pb2 as pb
from tinymq.raft import Role
from tinymq.raft.net.transport import Channel
from tinymq.raft.replica.snapshot_receiver import IncomingSnapshot, Need, need_of
from tinymq.raft.rules.messages import SNAPSHOT_CHUNK_BYTES, InstallSnapshot, SnapshotChunk

CONTENT = bytes(range(256)) * 8
OFFER = InstallSnapshot(
    term=3,
    index=40,
    entry_term=2,
    entry_crc=7,
    next_offset=30,
    append_time_us=5,
    size=len(CONTENT),
    crc=crc32c(CONTENT),
)
LARGE = bytes(1_500_000)
PIECES = 6  # of a large one


# ---- pure -----------------------------------------------------------------------------------------------


def test_an_offered_snapshot_is_installed_only_if_needed() -> None:
    log = ListLog(chain([1] * 50))
    assert need_of(log, 40, OFFER, 1 << 20) is Need.NONE, "it knows that this entry is committed"
    assert need_of(log, 39, replace(OFFER, entry_term=1), 1 << 20) is Need.NONE, "it has that very entry"
    assert need_of(log, 39, OFFER, 1 << 20) is Need.SNAPSHOT, "it has another entry at that index"
    assert need_of(ListLog(chain([1] * 39)), 9, OFFER, 1 << 20) is Need.SNAPSHOT, "it is behind"
    assert need_of(log, 9, OFFER, len(CONTENT)) is Need.SNAPSHOT
    assert need_of(log, 9, OFFER, len(CONTENT) - 1) is Need.TOO_LARGE


def chunk(position: int, size: int) -> SnapshotChunk:
    return SnapshotChunk(OFFER.term, OFFER.index, OFFER.crc, position, CONTENT[position : position + size])


@pytest.mark.parametrize("seed", range(20))
def test_chunks_arrive_in_any_order_and_more_than_once(seed: int) -> None:
    rng = random.Random(seed)
    incoming = IncomingSnapshot(OFFER)
    while incoming.whole() is None:
        at = rng.choice([incoming.received, rng.randrange(len(CONTENT))])
        before = incoming.received
        incoming.take(chunk(at, rng.randint(1, 300)))
        assert incoming.received == before or at == before
    state = incoming.whole()
    assert state is not None
    assert (state.index, state.entry_term, state.entry_crc, state.next_offset) == (40, 2, 7, 30)
    assert (state.append_time_us, state.data) == (5, CONTENT)


def test_a_snapshot_with_a_wrong_checksum_is_received_again() -> None:
    incoming = IncomingSnapshot(OFFER)
    incoming.take(chunk(0, 100))
    incoming.take(replace(chunk(100, len(CONTENT)), body=bytes(len(CONTENT) - 100)))
    assert incoming.whole() is None
    assert incoming.received == 0


def test_a_snapshot_never_grows_beyond_its_offered_size() -> None:
    incoming = IncomingSnapshot(OFFER)
    incoming.take(replace(chunk(0, 1), body=bytes(len(CONTENT) + 1)))
    assert incoming.received == 0


# ---- whole brokers ------------------------------------------------------------------------------------------


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "padding", LARGE)


async def trimmed(cluster: Cluster, away: Broker, count: int = 80) -> None:
    """`away` is down; the others have written more, and removed the head of their logs."""
    await cluster.commit(b"first")
    await cluster.settle()
    await cluster.run_for(0.5)
    away.kill()
    for i in range(count):
        await cluster.commit(b"%d" % i + bytes(700))
    await cluster.settle()
    for broker in cluster.running:
        log = broker.group().log
        broker.process.do(lambda log=log: log.remove_before(count // 2))
    await cluster.run_for(0.5)
    assert all(b.group().log.first_index > 20 for b in cluster.running)


def caught_up(cluster: Cluster, broker: Broker) -> bool:
    return broker.up and broker.group().role is Role.FOLLOWER and cluster.agreed()


def chunks(heard: list[tuple[int, int, Channel, pb.Peer, bytes]]) -> list[tuple[int, int]]:
    """(from, position), in order."""
    return [(a, m.snapshot_chunk.position) for a, _, _, m, _ in heard if m.HasField("snapshot_chunk")]


@pytest.mark.usefixtures("large")
def test_a_follower_behind_the_first_entry_is_caught_up_while_the_group_goes_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        away = cluster.followers()[0]
        await trimmed(cluster, away)
        cluster.background(cluster.load())
        await away.start()
        heard = listen(cluster)  # a message from before the group was open was dropped, and is sent again
        group = away.group()
        await cluster.until(lambda: group.log.first_index > 1, 5.0)
        cluster.end_background()
        await cluster.settle()
        assert away.group() is group
        assert group.log.first_index == cluster.leader().group().log.first_index
        assert [at for _, at in chunks(heard)] == [i * SNAPSHOT_CHUNK_BYTES for i in range(PIECES)]
        assert sum(m.HasField("install_snapshot") for _, _, _, m, _ in heard) == 1, (
            "it reports unasked that it has the snapshot"
        )
        await cluster.check_logs()
        before = group.log.last_index
        away.power_cut()
        await away.start()
        await cluster.settle()
        assert away.group().log.last_index >= before
        await cluster.check_logs()

    simulate(scenario)


def test_a_replica_with_an_empty_directory_is_caught_up() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        away = cluster.followers()[0]
        await trimmed(cluster, away)
        away.wipe()
        await away.start()
        await cluster.until(lambda: caught_up(cluster, away), 5.0)
        await cluster.check_logs()
        other = next(b for b in cluster.followers() if b is not away)
        other.kill()
        await cluster.commit(b"the new one counts")

    simulate(scenario)


def test_a_damaged_replica_of_a_trimmed_group_repairs_itself() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        away = cluster.followers()[0]
        await trimmed(cluster, away)
        for path in away.files.paths():
            if path.startswith(group_directory(GROUP)) and path.endswith(SEGMENT):
                away.files.flip_bit(path, 20)
        await away.start()
        assert away.group().role is Role.QUARANTINED
        await cluster.until(lambda: caught_up(cluster, away), 6.0)
        await cluster.check_logs()

    simulate(scenario)


@pytest.mark.usefixtures("large")
def test_a_transfer_resumes_after_a_lost_connection() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        away = cluster.followers()[0]
        await trimmed(cluster, away)
        heard = listen(cluster)
        await away.start()
        leader = cluster.leader()
        await cluster.until(lambda: len(chunks(heard)) == 3, 5.0)
        cluster.cut(leader.id, away.id)
        await cluster.run_for(0.1)
        cluster.heal()
        await cluster.until(lambda: caught_up(cluster, away), 8.0)
        positions = [at for _, at in chunks(heard)]
        assert positions.count(0) == 1
        assert len(positions) <= PIECES + 1
        await cluster.check_logs()

    simulate(scenario, delay_s=(0.01, 0.002))


@pytest.mark.usefixtures("large")
def test_a_transfer_resumes_under_another_leader() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        away = cluster.followers()[0]
        await trimmed(cluster, away)
        heard = listen(cluster)
        await away.start()
        leader = cluster.leader()
        await cluster.until(lambda: len(chunks(heard)) == 3, 5.0)
        leader.process.do(lambda: leader.host.transfer(GROUP))
        await cluster.until(lambda: cluster.leaders() and cluster.leader() is not leader, 5.0)
        await cluster.until(lambda: caught_up(cluster, away), 8.0)
        sent = chunks(heard)
        assert [at for _, at in sent].count(0) == 1
        assert len({source for source, _ in sent}) == 2
        await cluster.check_logs()

    simulate(scenario, delay_s=(0.01, 0.002))


@pytest.mark.usefixtures("large")
def test_a_late_chunk_changes_nothing() -> None:
    """The last chunk is held back. Meanwhile another leader, whose log is complete, sends all entries."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        away = cluster.followers()[0]
        await trimmed(cluster, away)
        heard = listen(cluster)
        await away.start()
        await cluster.until(lambda: caught_up(cluster, away), 8.0)
        await cluster.commit(b"behind it")
        await cluster.settle()
        log, end = away.group().log, away.group().log.last_index
        for source, to, _, message, body in heard:
            if to == away.id and (message.HasField("snapshot_chunk") or message.HasField("install_snapshot")):
                away.process.do(partial(away.host._router.on_message, source, message, body))
        await cluster.run_for(1.0)
        assert away.group().log is log
        assert log.last_index == end
        assert away.group().role is Role.FOLLOWER
        await cluster.commit(b"it goes on")
        await cluster.settle()
        await cluster.check_logs()

    simulate(scenario)


@pytest.mark.usefixtures("large")
def test_a_snapshot_over_the_limit_is_refused_and_the_status_says_why() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        away = cluster.followers()[0]
        await trimmed(cluster, away)
        await away.start()
        await cluster.until(lambda: away.group().status().reason, 5.0)
        assert "state_bytes_max" in away.group().status().reason
        await cluster.commit(b"the others go on")
        assert away.group().log.first_index == 1

    simulate(scenario, limits=replace(LIMITS, state_bytes_max=1000))


@pytest.mark.parametrize("part", first_of(range(4), 1))
def test_power_cuts_at_any_point_of_a_transfer(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "padding", LARGE[:600_000])
    for seed in range(part * 5, part * 5 + 5):

        async def scenario(cluster: Cluster, seed: int = seed) -> None:
            rng = random.Random(seed)
            await cluster.settle()
            away = rng.choice([cluster.leader(), *cluster.followers()])
            await trimmed(cluster, away, 60)
            cluster.background(cluster.load())
            await away.start()
            for _ in range(rng.randint(1, 4)):
                await cluster.run_for(rng.choice((0.01, 0.05, 0.3)) * rng.random())
                away.power_cut() if rng.random() < 0.7 else away.kill()
                await away.start()
            await cluster.until(lambda: away.up and away.group().log.first_index > 1, 10.0)
            cluster.end_background()
            await cluster.until(lambda: caught_up(cluster, away), 10.0)
            await cluster.check_logs()

        simulate(scenario, seed)
