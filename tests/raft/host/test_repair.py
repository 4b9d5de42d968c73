"""A damaged replica moves its log to quarantine and comes back as a learner. Damage on a majority changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.raft.harness import Broker, Cluster, simulate
from tests.raft.traffic import append_to, deliver, entry_after
from tests.raft.values import GROUP
from tests.seeds import first_of
from tinymq.base.errors import CorruptData, InvalidRequest
from tinymq.base.types import GroupId
from tinymq.format.entry import Entry, Kind, NewEntry, make_entry
from tinymq.log.engine.damaged_logs import has_quarantined
from tinymq.log.files.layout import MARKS, SEGMENT, VOTES, group_directory, in_group
from tinymq.raft import Role
from tinymq.raft.host.repair import pack_question, parse_question
from tinymq.raft.rules.membership import Membership, pack_membership
from tinymq.raft.rules.messages import Append

OTHER = GroupId(GROUP.topic_id, 1)
FIRST = in_group(group_directory(GROUP), 1, SEGMENT)


async def filled(cluster: Cluster, count: int = 60) -> None:
    """Write several segments on every broker, and marks that cover them."""
    for i in range(count):
        await cluster.commit(b"%d" % i + bytes(800))
    await cluster.settle()
    await cluster.run_for(1.0)


def whole(broker: Broker) -> bool:
    """Is the broker a member again, with no damaged entries left?"""
    group = broker.group() if broker.up and GROUP in broker.host.groups else None
    return (
        group is not None
        and group.role in (Role.FOLLOWER, Role.LEADER)
        and not group.status().reason
        and not has_quarantined(broker.files, GROUP)
    )


def listed_count(cluster: Cluster, broker: Broker) -> int:
    replica = cluster.leader().group().membership.replica(broker.id)
    assert replica is not None
    return replica.count


def stored(broker: Broker, directory: str) -> dict[str, bytes]:
    """All segments there."""
    return {p: broker.files.content(p) for p in broker.files.paths() if p.startswith(directory) and p.endswith(SEGMENT)}


def flip_first(broker: Broker) -> None:
    broker.files.flip_bit(FIRST, 3000)


def flip_last(broker: Broker) -> None:
    path = max(p for p in broker.files.paths() if p.startswith(group_directory(GROUP)) and p.endswith(SEGMENT))
    broker.files.flip_bit(path, 64 + 40)


def lose_first(broker: Broker) -> None:
    broker.files.remove(FIRST)
    broker.files.sync_directory(group_directory(GROUP))


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("damage", [flip_last, lose_first])
def test_damage_at_rest_is_repaired_while_writes_go_on(damage: Callable[[Broker], None], leads: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        broker = cluster.leader() if leads else cluster.followers()[0]
        broker.kill()
        damage(broker)
        cluster.background(cluster.load())
        await broker.start()
        assert broker.group().role is Role.QUARANTINED
        group = broker.group()
        await cluster.until(lambda: group.role is Role.LEARNER, 5.0)
        assert has_quarantined(broker.files, GROUP)
        assert group.status().reason.startswith("repairing: ")
        await cluster.until(lambda: whole(broker), 5.0)
        cluster.end_background()
        await cluster.settle()
        assert broker.group() is group, "files of other rooms stay"
        assert listed_count(cluster, broker) >= 1
        assert broker.machine().payloads == cluster.leader().machine().payloads
        await cluster.check_logs()

    simulate(scenario)


@pytest.mark.parametrize("leads", [True, False])
def test_damage_found_by_a_read_is_repaired(leads: bool) -> None:
    """Opening does not read older segments. A client's read does."""

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        broker = cluster.leader() if leads else cluster.followers()[0]
        flip_first(broker)
        group = broker.group()
        with pytest.raises(CorruptData):
            await broker.process.run(group.log.reader.read(2, 10_000))
        assert group.role is Role.QUARANTINED
        cluster.background(cluster.load())
        await cluster.until(lambda: whole(broker), 6.0)
        cluster.end_background()
        await cluster.settle()
        assert listed_count(cluster, broker) == 1
        await cluster.check_logs()

    simulate(scenario)


def test_damage_that_a_read_found_is_known_after_a_restart() -> None:
    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        broker = cluster.followers()[0]
        flip_first(broker)
        cluster.isolate(broker.id)
        with pytest.raises(CorruptData):
            await broker.process.run(broker.group().log.reader.read(2, 10_000))
        await cluster.run_for(0.5)
        broker.power_cut()
        await broker.start()
        assert broker.group().role is Role.QUARANTINED
        cluster.heal()
        await cluster.until(lambda: whole(broker), 6.0)

    simulate(scenario)


def test_damage_everywhere_destroys_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        for broker in cluster.brokers.values():
            broker.kill()
            flip_last(broker)
        before = {b.id: stored(b, "groups") for b in cluster.brokers.values()}
        await cluster.start()
        await cluster.run_for(40.0)
        for broker in cluster.brokers.values():
            assert broker.group().role is Role.QUARANTINED
            assert stored(broker, "groups") == before[broker.id]

    simulate(scenario)


@pytest.mark.parametrize("with_leader", [True, False])
def test_damage_on_two_of_three_destroys_nothing(with_leader: bool) -> None:
    """The leader refuses because the group needs the damaged replica: the third replica confirms no read index."""

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        leader, (one, two) = cluster.leader(), cluster.followers()
        damaged = [leader, one] if with_leader else [one, two]
        for broker in damaged:
            flip_first(broker)
            with pytest.raises(CorruptData):
                await broker.process.run(broker.group().log.reader.read(2, 10_000))
        await cluster.run_for(40.0)
        for broker in damaged:
            assert broker.group().role is Role.QUARANTINED
            assert not has_quarantined(broker.files, GROUP)

    simulate(scenario)


def applies_out_of_order(cluster: Cluster, broker: Broker) -> None:
    broker.machine().index = 99


def refuses_what_it_applies(cluster: Cluster, broker: Broker) -> None:
    def apply(entry: Entry) -> None:
        raise CorruptData("nonsense")

    broker.machine().apply = apply  # type: ignore[method-assign]


def meets_another_entry_than_was_committed(cluster: Cluster, broker: Broker) -> None:
    leader = cluster.leader().id
    entry = make_entry(NewEntry(Kind.NOOP, b""), index=2, term=99, prev_crc=0, base_offset=0, append_time_us=1)
    deliver(broker, leader, Append(99, 1, 0, 2, [entry]))


def meets_a_config_out_of_turn(cluster: Cluster, broker: Broker) -> None:
    payload = pack_membership(Membership(GROUP, 7, broker.group().membership.replicas))
    deliver(broker, cluster.leader().id, append_to(broker, entry_after(broker, Kind.CONFIG, 1, payload)))


@pytest.mark.parametrize(
    "meets",
    [
        applies_out_of_order,
        refuses_what_it_applies,
        meets_another_entry_than_was_committed,
        meets_a_config_out_of_turn,
    ],
)
def test_a_broken_invariant_is_not_repaired_automatically(meets: Callable[[Cluster, Broker], None]) -> None:
    """Every replica may hit the same bug. If each moved its log to quarantine, the bug would empty all of them."""

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster, 5)
        broker = cluster.followers()[0]
        meets(cluster, broker)
        before = stored(broker, "groups")
        await cluster.commit(b"x")
        await cluster.until(lambda: broker.group().role is Role.FAILED, 1.0)
        await cluster.run_for(5.0)
        assert broker.group().role is Role.FAILED
        assert broker.group().status().reason.startswith("BrokenInvariant: ")
        assert stored(broker, "groups").keys() == before.keys()
        assert not has_quarantined(broker.files, GROUP)

    simulate(scenario)


def test_a_second_damage_keeps_the_first_quarantined_log() -> None:
    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        broker = cluster.followers()[0]
        broker.kill()
        flip_last(broker)
        await broker.start()
        await cluster.until(lambda: has_quarantined(broker.files, GROUP), 3.0)
        broker.kill()
        kept = {
            p: broker.files.content(p) for p in broker.files.paths() if p.startswith("aside") and p.endswith(SEGMENT)
        }
        for path in broker.files.paths():
            if path.startswith("groups"):
                broker.files.flip_bit(path, 10)
        cluster.isolate(broker.id)
        await broker.start()
        await cluster.run_for(2.0)
        found = {
            p: broker.files.content(p) for p in broker.files.paths() if p.startswith("aside") and p.endswith(SEGMENT)
        }
        assert kept.items() <= found.items()
        cluster.heal()
        await cluster.until(lambda: whole(broker), 10.0)
        await cluster.check_logs()

    simulate(scenario)


@pytest.mark.parametrize("part", first_of(range(3), 1))
def test_a_group_that_is_closed_while_it_repairs_can_be_opened_again(part: int) -> None:
    """Cut the power at every third millisecond; the long tests cover the milliseconds between."""
    for seed in range(part, 24, 3):

        async def scenario(cluster: Cluster, seed: int = seed) -> None:
            await filled(cluster, 20)
            broker = cluster.followers()[0]
            flip_first(broker)
            with pytest.raises(CorruptData):
                await broker.process.run(broker.group().log.reader.read(2, 10_000))
            await cluster.run_for(seed * 0.001)
            await broker.process.run(broker.host.close_group(GROUP))
            await broker.process.run(broker.open_group(GROUP, cluster.first_entries[GROUP]))
            await cluster.until(lambda: whole(broker), 6.0)
            await broker.process.run(broker.host.delete_group(GROUP))
            assert not [p for p in broker.files.paths() if "groups" in p or "aside" in p]

        simulate(scenario, seed)


@pytest.mark.parametrize("part", first_of(range(4), 1))
def test_power_cuts_at_any_point_of_a_repair(part: int) -> None:
    for seed in range(part * 5, part * 5 + 5):

        async def scenario(cluster: Cluster, seed: int = seed) -> None:
            rng = random.Random(seed)
            await filled(cluster, 30)
            broker = rng.choice([cluster.leader(), *cluster.followers()])
            broker.kill()
            rng.choice([flip_last, lose_first])(broker)
            cluster.background(cluster.load())
            await broker.start()
            for _ in range(rng.randint(1, 4)):
                await cluster.run_for(rng.choice((0.01, 0.1, 1.0)) * rng.random())
                with suppress(AssertionError):
                    broker.power_cut() if rng.random() < 0.7 else broker.kill()
                await broker.start()
            await cluster.until(lambda: whole(broker), 12.0)
            cluster.end_background()
            await cluster.settle()
            assert listed_count(cluster, broker) >= 1
            await cluster.check_logs()

        simulate(scenario, seed)


def test_an_old_disk_that_turns_up_again_takes_an_identity_of_its_own() -> None:
    """The leader lists no identity twice: the leader could not tell the two processes apart."""

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster, 20)
        broker = cluster.followers()[0]
        old = broker.files
        broker.wipe()
        await broker.start()
        await cluster.until(lambda: broker.group().role is Role.FOLLOWER, 5.0)
        await cluster.commit(b"behind the old disk's back")
        broker.power_cut()
        broker.files = old
        old.power_cut()
        await broker.start()
        await cluster.until(lambda: listed_count(cluster, broker) == 1, 5.0)
        await cluster.until(lambda: broker.group().role is Role.FOLLOWER, 5.0)
        await cluster.commit(b"more")
        await cluster.settle()
        assert broker.group().replica.state.me.count == 1
        broker.power_cut()
        await broker.start()
        await cluster.settle()
        assert broker.group().role is Role.FOLLOWER
        await cluster.check_logs()

    simulate(scenario)


def test_counts_lost_with_the_marks_are_not_reused() -> None:
    async def scenario(cluster: Cluster) -> None:
        await filled(cluster, 20)
        broker = cluster.followers()[0]
        for _ in range(2):
            broker.power_cut()
            for path in VOTES:  # terms and votes may be lost, so the replica takes another incarnation
                broker.files.put(path, b"")
            await broker.start()
            await cluster.until(lambda: broker.group().role is Role.FOLLOWER, 5.0)
        assert listed_count(cluster, broker) == 2
        broker.power_cut()
        broker.files.put(MARKS, b"")
        await broker.start()
        await cluster.until(lambda: listed_count(cluster, broker) == 3, 5.0)
        await cluster.until(lambda: broker.group().role is Role.FOLLOWER, 5.0)

    simulate(scenario)


def test_a_repair_request_survives_the_wire() -> None:
    assert parse_question(pack_question(OTHER, 7)) == (OTHER, 7)
    with pytest.raises(InvalidRequest):
        parse_question(b"short")
