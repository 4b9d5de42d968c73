"""Commands to the metadata leader: forwarded, retried, ended by a deadline, applied once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine

import pytest

from tests.fakes.manual_clock import ManualClock
from tests.fakes.raft_group import FakeGroup
from tests.fakes.raft_host import FakeHosts
from tests.registry.records import broker
from tinymq.base.config import Timing
from tinymq.base.errors import DeadlineExceeded, OutcomeUnknown, TinymqError
from tinymq.base.types import METADATA_GROUP
from tinymq.proto import registry_pb2 as pb
from tinymq.registry.raft_group.replicated import ReplicatedRegistry
from tinymq.registry.raft_group.state_machine import RegistryMachine

NOTHING = pb.Command(unregister_broker=pb.UnregisterBroker(broker_id=9)).SerializeToString()


class Follower(FakeGroup):
    """Applies the committed entries of the leader's group when the test says so."""

    def follow_up(self, leader: FakeGroup) -> None:
        for entry in leader.log.entries[self.applied : leader.applied]:
            self.applied += 1
            self.machine.apply(entry)  # type: ignore[attr-defined]


class Bench:
    """Broker 1 leads the metadata group, broker 2 follows."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.hosts = FakeHosts()
        self.machines = [RegistryMachine(), RegistryMachine()]
        self.group = FakeGroup(self.machines[0], METADATA_GROUP, self._soon)
        self.follower = Follower(self.machines[1], METADATA_GROUP, leads=False)
        self.machines[0].attach(self.group)
        self.machines[1].attach(self.follower)
        self.leader, self.other = (
            ReplicatedRegistry(n + 1, machine, self.hosts.host(n + 1), self.clock, random.Random(n), Timing())
            for n, machine in enumerate(self.machines)
        )
        self.hosts.leaders[METADATA_GROUP] = (1, 1)
        self.commits = True

    def _soon(self) -> None:
        if self.commits:
            asyncio.get_running_loop().call_soon(self.commit)

    def commit(self) -> None:
        self.group.commit()
        self.follower.follow_up(self.group)

    async def end(self, call: Coroutine[object, object, object]) -> object:
        """Let time pass until `call` ends."""
        task = asyncio.ensure_future(call)
        while not task.done():
            for _ in range(10):
                await asyncio.sleep(0)
            self.clock.advance(0.01)
        return await task


def test_a_follower_forwards_and_then_shows_the_change() -> None:
    async def main() -> None:
        b = Bench()
        await b.end(b.other.register_broker(broker(2)))
        topic = await b.end(b.other.register_topic("t", 2, 1))
        assert b.other.get_topic("t") == b.leader.get_topic("t") == topic

    asyncio.run(main())


def test_a_command_with_a_lost_reply_is_retried_and_applied_once() -> None:
    async def main() -> None:
        b = Bench()
        await b.end(b.leader.register_broker(broker(1)))
        b.hosts.lose_replies = 3
        await b.end(b.other.register_topic("t", 2, 1))
        assert b.leader.version == 2
        ids = await b.end(b.other.take_producer_ids(10))
        assert list(ids) == list(range(1, 11))  # type: ignore[call-overload]

    asyncio.run(main())


def test_without_a_leader_the_command_was_not_done() -> None:
    async def main() -> None:
        b = Bench()
        del b.hosts.leaders[METADATA_GROUP]
        with pytest.raises(DeadlineExceeded):
            await b.end(b.other.take_producer_ids(1))

    asyncio.run(main())


def test_a_leader_that_does_not_commit_leaves_the_outcome_unknown() -> None:
    async def main() -> None:
        b = Bench()
        b.commits = False
        for registry in (b.leader, b.other):
            with pytest.raises(OutcomeUnknown):
                await b.end(registry.take_producer_ids(1))

    asyncio.run(main())


def test_a_deposed_leader_leaves_the_outcome_unknown() -> None:
    """The next leader may have the command and keep it, so NotLeader would wrongly mean that nothing was done (hazard
    13).
    """

    async def main() -> None:
        b = Bench()
        b.commits = False
        reply = b.machines[0].propose(NOTHING)
        b.group.lose_leadership(to=2)
        assert isinstance(reply.exception(), OutcomeUnknown)

    asyncio.run(main())


def test_a_change_that_has_not_reached_this_broker_is_not_reported_as_undone() -> None:
    async def main() -> None:
        b = Bench()
        b.follower.follow_up = lambda leader: None  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown, match="is made"):
            await b.end(b.other.take_producer_ids(1))

    asyncio.run(main())


def test_a_shorter_deadline_is_kept() -> None:
    async def main() -> None:
        b = Bench()
        b.commits = False
        start_s = b.clock.monotonic()
        with pytest.raises(OutcomeUnknown):
            await b.end(b.leader.register_topic("t", 1, 1, timeout_s=0.5))
        assert b.clock.monotonic() - start_s < 1

    asyncio.run(main())


def test_a_change_of_leader_in_the_middle_applies_once() -> None:
    async def main() -> None:
        b = Bench()
        b.commits = False
        taking = asyncio.ensure_future(b.end(b.leader.take_producer_ids(10)))
        for _ in range(3):
            await asyncio.sleep(0)
        b.group.lose_leadership(keep_tail=True)
        b.commits = True
        b.group.win()
        assert list(await taking) == list(range(1, 11))  # type: ignore[call-overload]
        assert b.leader.version == 1

    asyncio.run(main())


def test_a_new_leader_gives_every_registration_a_whole_lease() -> None:
    async def main() -> None:
        b = Bench()
        await b.end(b.leader.register_broker(broker(1)))
        b.clock.advance(Timing().registration_lease_s * 0.9)
        b.group.lose_leadership()
        b.clock.advance(Timing().registration_lease_s * 3)
        b.group.win()
        b.clock.advance(Timing().registration_lease_s * 0.9)
        await asyncio.sleep(0)
        assert b.leader.get_broker(1) is not None
        b.clock.advance(Timing().registration_lease_s)
        await asyncio.sleep(0)
        assert b.leader.get_broker(1) is None

    asyncio.run(main())


def test_a_refresh_asks_the_leader_and_the_leader_a_majority() -> None:
    """Hazard 13, on every broker, the leader included."""

    async def main() -> None:
        b = Bench()
        await b.end(b.leader.register_broker(broker(1)))
        b.follower.follow_up = lambda leader: None  # type: ignore[method-assign]
        await b.end(b.leader.register_topic("t", 1, 1))
        for count, registry in enumerate((b.leader, b.other), 1):
            if registry is b.other:
                assert registry.get_topic("t") is None
                del b.follower.follow_up
                b.commit()
            assert await b.end(registry.refresh(1.0)) == 2
            assert registry.get_topic("t") is not None
            assert b.group.reads == count

    asyncio.run(main())


def test_a_leader_that_cannot_prove_its_leadership_refuses_reads() -> None:
    async def main() -> None:
        b = Bench()
        b.group.proves = False
        for registry in (b.leader, b.other):
            start_s = b.clock.monotonic()
            with pytest.raises(DeadlineExceeded):
                await b.end(registry.refresh(1.0))
            assert b.clock.monotonic() - start_s <= 1.05
        b.group.lose_leadership()
        with pytest.raises(DeadlineExceeded):
            await b.end(b.leader.refresh(0.5))
        b.group.proves = True
        b.group.win()
        await b.end(b.other.refresh(0.5))

    asyncio.run(main())


def test_a_lost_read_answer_is_not_an_unknown_outcome() -> None:
    async def main() -> None:
        b = Bench()
        b.hosts.lose_replies = 1000
        with pytest.raises(DeadlineExceeded):
            await b.end(b.other.refresh(0.5))

    asyncio.run(main())


def test_invalid_bytes_from_a_peer_raise_a_typed_error() -> None:
    async def main() -> None:
        b = Bench()
        for nonsense in (b"", b"\xff\xff\xff"):
            with pytest.raises(TinymqError) as refused:
                await b.hosts.host(2).request(1, "registry", nonsense, 1.0)
            assert refused.value.code == "InvalidRequest"

    asyncio.run(main())
