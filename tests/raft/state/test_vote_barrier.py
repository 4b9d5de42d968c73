"""No message that depends on a term or a vote leaves before that is synced, and messages leave in order: hazard 7."""

from __future__ import annotations

from collections.abc import Callable

from tests.raft.harness import Cluster, simulate
from tinymq.raft.state.vote_barrier import VoteBarrier


class Disk:
    durable = True

    def __call__(self) -> bool:
        return self.durable


def note(done: list[str], what: str) -> Callable[[], None]:
    return lambda: done.append(what)


def test_a_message_without_an_unsynced_vote_leaves_at_once() -> None:
    done: list[str] = []
    VoteBarrier(Disk()).post(note(done, "a"))
    assert done == ["a"]


def test_waiting_messages_leave_in_order_after_the_sync() -> None:
    disk, done = Disk(), []
    box = VoteBarrier(disk)
    disk.durable = False
    for what in "abc":
        box.post(note(done, what))
    box.flush()
    assert (done, len(box)) == ([], 3)
    disk.durable = True
    box.post(note(done, "d"))  # nothing has been flushed yet: this message must not overtake the first
    box.flush()
    assert (done, len(box)) == (["a", "b", "c", "d"], 0)


def test_an_action_that_needs_another_sync_ends_the_flush() -> None:
    disk, done = Disk(), []
    box = VoteBarrier(disk)
    disk.durable = False

    def votes_again() -> None:
        done.append("a")
        disk.durable = False
        box.post(note(done, "c"))

    box.post(votes_again)
    box.post(note(done, "b"))
    disk.durable = True
    box.flush()
    assert done == ["a"]
    disk.durable = True
    box.flush()
    assert done == ["a", "b", "c"]


def test_a_failed_replica_sends_no_message() -> None:
    disk, done = Disk(), []
    box = VoteBarrier(disk)
    disk.durable = False
    box.post(note(done, "a"))
    box.clear()
    disk.durable = True
    box.flush()
    assert done == []


def test_the_newest_message_of_a_kind_replaces_the_waiting_ones() -> None:
    disk, done = Disk(), []
    box = VoteBarrier(disk)
    disk.durable = False
    for turn in range(100):
        box.post(note(done, f"a{turn}"), "a")
        box.post(note(done, f"b{turn}"), "b")
        if turn == 50:
            box.post(note(done, "by itself"))
    assert len(box) == 3
    disk.durable = True
    box.flush()
    assert done == ["by itself", "a99", "b99"]


def test_a_disk_that_hangs_for_a_minute_makes_no_queue() -> None:
    """A replica that waits for the sync of its vote campaigns repeatedly, and sends and answers requests."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        leader, (one, other) = cluster.leader(), cluster.followers()
        hung = [broker.disk for broker in (one, other)]
        freed = cluster.loop.create_future()
        for disk in hung:
            disk.hung = freed
        leader.kill()
        most = 0
        for _ in range(60):
            await cluster.run_for(1.0)
            most = max([most, *(len(broker.group().replica.state.vote_barrier) for broker in (one, other))])
        assert 0 < most <= 7, "two kinds of requests, two of replies, and its messages to itself"
        for disk in hung:
            disk.hung = None
        freed.set_result(None)
        await cluster.commit(b"they go on")

    simulate(scenario)
