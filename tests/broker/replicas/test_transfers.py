"""Manual leadership transfers: which broker can take over, the error when none can, and the wait for the result."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.replicas.test_preferred_leaders import ONE, FakeGroup, FakeHost
from tests.fakes.manual_clock import ManualClock
from tinymq.base.errors import DeadlineExceeded, InvalidRequest, NotLeader, NotReady, OutcomeUnknown, TinymqError
from tinymq.base.types import GroupId, TopicId
from tinymq.broker.replicas.transfers import ANY, Transfers
from tinymq.registry.state.values import QueueRecord, ReplicaPlace

QUEUE = QueueRecord("t", TopicId(ONE.topic_id), ONE.partition, tuple(ReplicaPlace(b, bytes(16)) for b in (1, 2, 3)), 1)


class Host(FakeHost):
    """Broker 2, and the leader hints that it gets."""

    broker_id = 2

    def __init__(self, group: FakeGroup) -> None:
        super().__init__(group)
        self.group = group
        self.leader: tuple[int, int] | None = (2, 5)
        self.takes = True
        self.manual: bool | None = None

    def leader_of(self, group_id: GroupId) -> tuple[int, int] | None:
        return self.leader

    def transfer(
        self, group_id: GroupId, to: int | None = None, *, within_s: float | None = None, manual: bool = False
    ) -> bool:
        self.manual = manual
        return self.takes and super().transfer(group_id, to, within_s=within_s)


class Ready(FakeGroup):
    """A group that names why some brokers are not ready."""

    def __init__(self, **why: str) -> None:
        super().__init__(ONE)
        self.why = {int(name[1:]): reason for name, reason in why.items()}

    def transfer_obstacle(self, broker_id: int) -> str:
        return self.why.get(broker_id, "")


def transfer(host: Host, to: int, *then: object, timeout_s: float = 10.0) -> tuple[int, int]:
    """Return the result of a transfer; `then` lists the events at the host while it waits, in order."""
    steps = list(then)

    async def main() -> tuple[int, int]:
        clock = ManualClock()
        work = asyncio.ensure_future(Transfers(host, clock, within_s=5.0).transfer(QUEUE, to, timeout_s))  # type: ignore[arg-type]
        while not work.done():
            for _ in range(3):
                await asyncio.sleep(0)
            if steps:
                steps.pop(0)(host)  # type: ignore[operator]
            clock.advance(0.01)
        return work.result()

    return asyncio.run(main())


def steps_down(host: Host) -> None:
    host.group.origin, host.group.is_transferring, host.leader = None, False, None


def three_leads(host: Host) -> None:
    host.leader = (3, 6)


def gives_up(host: Host) -> None:
    host.group.is_transferring = False


def test_a_transfer_is_awaited_and_marked_as_manual() -> None:
    host = Host(Ready())
    assert transfer(host, 3, steps_down, three_leads) == (3, 6)
    assert (host.asked, host.manual) == ([(ONE, 3, 5.0)], True)


def test_writers_wait_no_longer_than_the_caller() -> None:
    host = Host(Ready())
    transfer(host, 3, steps_down, three_leads, timeout_s=2.0)
    assert host.asked == [(ONE, 3, 2.0)]


@pytest.mark.parametrize(("why", "successor"), [({}, 1), ({"b1": "broker 1 is not alive"}, 3)])
def test_without_a_target_the_preferred_or_next_ready_broker_is_chosen(why: dict[str, str], successor: int) -> None:
    host = Host(Ready(**why))
    transfer(host, ANY, steps_down, three_leads)
    assert host.asked == [(ONE, successor, 5.0)]


def test_a_transfer_to_the_present_leader_does_nothing() -> None:
    host = Host(Ready())
    assert transfer(host, 2) == (2, 5)
    assert host.asked == []


@pytest.mark.parametrize(
    ("host", "to", "error", "says"),
    [
        (Host(Ready()), 9, InvalidRequest, "broker 9 holds no replica"),
        (Host(Ready(b3="broker 3 is catching up: it lacks 500 entries")), 3, NotReady, "it lacks 500 entries"),
        (Host(Ready(b1="a sync hangs", b3="a sync hangs")), ANY, NotReady, "handed over: a sync hangs .try"),
    ],
)
def test_an_impossible_transfer_is_refused_without_effect(
    host: Host, to: int, error: type[TinymqError], says: str
) -> None:
    with pytest.raises(error, match=says):
        transfer(host, to)
    assert host.asked == []


def test_a_new_leader_waits_until_it_has_heard_the_successor() -> None:
    group = Ready(b3="broker 3 has not been heard in this term")

    def three_is_heard(host: Host) -> None:
        group.why.clear()

    assert transfer(Host(group), 3, lambda h: None, three_is_heard, steps_down, three_leads) == (3, 6)


def test_a_leader_that_steps_down_while_it_waits_for_a_successor_transfers_nothing() -> None:
    host = Host(Ready(b3="broker 3 is catching up"))
    with pytest.raises(NotLeader):
        transfer(host, 3, steps_down)
    assert host.asked == []


def test_a_follower_names_the_leader_for_a_transfer() -> None:
    host = Host(Ready())
    host.group.origin, host.leader = None, (1, 6)
    with pytest.raises(NotLeader) as raised:
        transfer(host, 3)
    assert raised.value.detail["leader"] == "1"


def test_a_successor_that_does_not_take_over_changes_nothing() -> None:
    with pytest.raises(DeadlineExceeded, match="broker 3 did not take over"):
        transfer(Host(Ready()), 3, lambda h: None, gives_up)
    host = Host(Ready())
    host.takes = False
    with pytest.raises(NotReady):
        transfer(host, 3)


def test_without_a_known_leader_the_outcome_is_unknown() -> None:
    with pytest.raises(OutcomeUnknown):
        transfer(Host(Ready()), 3, steps_down)


def test_a_leader_of_an_earlier_term_is_not_the_successor() -> None:
    def old_news(host: Host) -> None:
        host.leader = (1, 4)

    assert transfer(Host(Ready()), 3, old_news, steps_down, three_leads) == (3, 6)
