"""The faults of the network in memory, on a clock that a test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.fakes.manual_clock import ManualClock
from tests.fakes.networks import End, InMemoryNetwork, heartbeat, started
from tinymq.base.errors import DeadlineExceeded
from tinymq.proto import peer_pb2
from tinymq.raft.net.transport import HANDSHAKE_TIMEOUT_S, UNACKNOWLEDGED_S, Channel
from tinymq.simulation.link_conditions import STALE_S

Scenario = Callable[[InMemoryNetwork, ManualClock], Awaitable[None]]


def run(scenario: Scenario) -> None:
    async def whole() -> None:
        clock = ManualClock()
        net = InMemoryNetwork(clock)
        await scenario(net, clock)
        await net.stop()

    asyncio.run(whole())


async def settle() -> None:
    """Deliver everything that is due now, without moving the clock."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_without_delay_no_time_passes() -> None:
    async def scenario(net: InMemoryNetwork, clock: ManualClock) -> None:
        a, b = await started(net, 1, 2)
        assert a.send(2, 1)
        assert b.events.messages == [], "never delivered inside send"
        await settle()
        assert b.events.sequences == [1]
        assert clock.monotonic() == 1000.0

    run(scenario)


def test_a_delay_holds_messages_and_keeps_their_order() -> None:
    async def scenario(net: InMemoryNetwork, clock: ManualClock) -> None:
        a, b = await started(net, 1, 2)
        net.network.delay(1, 2, 0.5)
        assert a.send(2, 1)
        net.network.delay(1, 2, 0.1)
        assert a.send(2, 2)
        assert a.send(2, 3, Channel.BULK)
        clock.advance(0.2)
        await settle()
        assert b.events.sequences == [3], "a channel does not wait for the other one"
        clock.advance(0.2)
        await settle()
        assert b.events.sequences == [3]
        clock.advance(0.2)
        await settle()
        assert b.events.sequences == [3, 1, 2]

    run(scenario)


def test_jitter_follows_the_seed_and_keeps_order() -> None:
    async def scenario(net: InMemoryNetwork, clock: ManualClock) -> None:
        a, b = await started(net, 1, 2)
        net.network.delay(1, 2, 0.01, jitter_s=0.1)
        for i in range(20):
            assert a.send(2, i)
        clock.advance(0.2)
        await settle()
        assert b.events.sequences == list(range(20))

    run(scenario)


def test_a_cut_holds_messages_until_healed() -> None:
    async def scenario(net: InMemoryNetwork, clock: ManualClock) -> None:
        a, b = await started(net, 1, 2)
        net.network.cut(1, 2)
        assert a.send(2, 1)
        assert b.send(1, 2)
        clock.advance(UNACKNOWLEDGED_S - 0.1)
        await settle()
        assert a.events.messages == b.events.messages == []
        assert a.transport.connected(2, Channel.CONTROL), "nobody has noticed"
        assert not net.network.idle
        net.network.heal(1, 2)
        await settle()
        assert (a.events.sequences, b.events.sequences) == ([2], [1])
        assert net.network.idle

    run(scenario)


def test_a_message_that_does_not_arrive_ends_its_connection() -> None:
    async def scenario(net: InMemoryNetwork, clock: ManualClock) -> None:
        a, b = await started(net, 1, 2)
        net.network.cut(1, 2)
        assert a.send(2, 1)
        clock.advance(UNACKNOWLEDGED_S)
        await settle()
        assert not a.transport.connected(2, Channel.CONTROL)
        assert a.transport.connected(2, Channel.BULK), "nothing was sent on it"
        assert b.transport.connected(1, Channel.CONTROL), "nor on the connection back"
        net.network.heal()
        clock.advance(1.0)
        await settle()
        assert a.send(2, 2)
        await settle()
        assert b.events.sequences == [2]

    run(scenario)


def test_a_cut_may_be_one_way() -> None:
    async def scenario(net: InMemoryNetwork, clock: ManualClock) -> None:
        a, b = await started(net, 1, 2)
        net.network.cut(1, 2, both=False)
        assert a.send(2, 1)
        assert b.send(1, 2)
        await settle()
        assert (a.events.sequences, b.events.sequences) == ([2], [])
        net.network.heal()
        await settle()
        assert b.events.sequences == [1]

    run(scenario)


def test_messages_held_by_a_cut_are_lost_with_their_connection() -> None:
    async def scenario(net: InMemoryNetwork, clock: ManualClock) -> None:
        a, b = await started(net, 1, 2)
        net.network.cut(1, 2)
        assert a.send(2, 1)
        a.transport.reset(2, Channel.CONTROL)
        await settle()
        assert not a.transport.connected(2, Channel.CONTROL), "no connection through a cut"
        clock.advance(HANDSHAKE_TIMEOUT_S)
        await settle()
        assert [type(error) for _, error in a.events.refused] == [DeadlineExceeded]
        net.network.heal()
        await settle()
        assert a.transport.connected(2, Channel.CONTROL), "healing wakes the waiting dialer"
        assert a.send(2, 2)
        await settle()
        assert b.events.sequences == [2]

    run(scenario)


def test_isolate_cuts_one_from_all() -> None:
    async def scenario(net: InMemoryNetwork, clock: ManualClock) -> None:
        a, b, c = await started(net, 1, 2, 3)
        net.network.isolate(1, [1, 2, 3])
        assert a.send(2, 1)
        assert a.send(3, 1)
        assert b.send(3, 2)
        assert c.send(1, 3)
        await settle()
        assert (a.events.sequences, b.events.sequences, c.events.sequences) == ([], [], [2])

    run(scenario)


def test_a_reset_loses_messages_in_flight_and_both_sides_dial_again() -> None:
    async def scenario(net: InMemoryNetwork, clock: ManualClock) -> None:
        a, b = await started(net, 1, 2)
        assert a.send(2, 1)
        assert b.send(1, 1)
        net.network.reset(1, 2)
        assert not a.send(2, 2)
        await settle()
        assert a.events.messages == b.events.messages == []
        assert len(a.events.disconnected) == len(b.events.disconnected) == 2
        assert a.send(2, 3)
        await settle()
        assert b.events.sequences == [3]

    run(scenario)


def test_messages_are_dropped_and_doubled_on_demand() -> None:
    async def scenario(net: InMemoryNetwork, clock: ManualClock) -> None:
        a, b = await started(net, 1, 2)
        net.network.drop_next(1, 2, count=2, matching=lambda m: m.heartbeat.sequence >= 2)
        net.network.duplicate_next(1, 2, matching=lambda m: m.heartbeat.sequence == 5)
        for i in range(1, 7):
            assert a.send(2, i)
        assert a.send(2, 5, Channel.BULK)
        await settle()
        assert sorted(b.events.sequences) == [1, 4, 5, 5, 5, 6]

    run(scenario)


def test_a_crash_is_noticed_and_a_restart_found() -> None:
    async def scenario(net: InMemoryNetwork, clock: ManualClock) -> None:
        a, b = await started(net, 1, 2)
        port = b.address.port
        net.network.crash(2)
        assert not b.send(1, 1)
        await settle()
        assert len(a.events.disconnected) == 2
        again: End = net.make(2, session=2, port=port)
        await again.transport.start()
        clock.advance(2)
        await settle()
        assert a.transport.connected(2, Channel.BULK)

    run(scenario)


def test_nothing_is_shared_between_brokers() -> None:
    async def scenario(net: InMemoryNetwork, clock: ManualClock) -> None:
        a, b = await started(net, 1, 2)
        message, body = heartbeat(1), bytearray(b"body")
        assert a.transport.send(2, Channel.CONTROL, message, (body,))
        message.heartbeat.sequence = 2
        body[:] = b"gone"
        await settle()
        assert b.events.messages == [(1, heartbeat(1), b"body")]

    run(scenario)


def test_every_delivery_can_be_watched() -> None:
    async def scenario(net: InMemoryNetwork, clock: ManualClock) -> None:
        a, _ = await started(net, 1, 2)
        seen: list[tuple[int, int, Channel, int, bytes]] = []
        net.network.on_delivered = lambda source, target, channel, message, body: seen.append(
            (source, target, channel, message.heartbeat.sequence, body)
        )
        assert a.send(2, 4, Channel.BULK, (b"x",))
        await settle()
        assert seen == [(1, 2, Channel.BULK, 4, b"x")]

    run(scenario)


def test_what_a_machine_without_power_had_not_sent_never_arrives() -> None:
    async def scenario(net: InMemoryNetwork, clock: ManualClock) -> None:
        a, b, c = await started(net, 1, 2, 3)
        for target in (2, 3):
            net.network.delay(1, target, 0.1)
        net.network.cut(1, 3, both=False)
        assert a.send(2, 1)
        assert a.send(3, 1)
        net.network.power_off(1)
        net.network.heal()
        clock.advance(0.2)
        await settle()
        assert b.events.sequences == [1], "it was on the wire"
        assert c.events.sequences == [], "its machine still held it"

    run(scenario)


def test_a_stale_message_finds_the_connection_that_took_the_place_of_its_own() -> None:
    async def scenario(net: InMemoryNetwork, clock: ManualClock) -> None:
        a, b = await started(net, 1, 2)
        net.network._conditions.of((1, 2)).stale = 1.0
        assert a.transport.send(2, Channel.CONTROL, peer_pb2.Peer(append_ack=peer_pb2.AppendAck(term=7)))
        await settle()
        net.network.reset(1, 2)
        await settle()
        assert a.transport.connected(2, Channel.CONTROL)
        clock.advance(STALE_S)
        await settle()
        assert [message.append_ack.term for _, message, _ in b.events.messages] == [7, 7]

    run(scenario)


def test_a_lost_connection_carries_nothing_until_it_is_opened_again() -> None:
    async def scenario(net: InMemoryNetwork, clock: ManualClock) -> None:
        a, b = await started(net, 1, 2)
        assert net.network.lose_connection(1, 2, Channel.CONTROL)
        assert not net.network.lose_connection(1, 2, Channel.CONTROL), "it is lost already"
        assert a.send(2, 1)
        assert a.send(2, 2, Channel.BULK)
        assert b.send(1, 3)
        await settle()
        clock.advance(UNACKNOWLEDGED_S - 0.1)
        await settle()
        assert (a.events.sequences, b.events.sequences) == ([3], [2])
        net.network.end_lost(1, 2, Channel.CONTROL)
        clock.advance(1.0)
        await settle()
        assert a.send(2, 4)
        await settle()
        assert b.events.sequences == [2, 4]

    run(scenario)


def test_one_kind_of_connections_is_cut_alone() -> None:
    async def scenario(net: InMemoryNetwork, clock: ManualClock) -> None:
        a, b = await started(net, 1, 2)
        conditions = net.network._conditions
        conditions.cut_part((1, 2), Channel.BULK)
        assert conditions.is_impaired((1, 2))
        assert not conditions.is_impaired((2, 1))
        assert a.send(2, 1, Channel.BULK)
        assert a.send(2, 2)
        await settle()
        assert b.events.sequences == [2]
        conditions.heal_part((1, 2), Channel.BULK)
        net.network.healed()
        await settle()
        assert b.events.sequences == [2, 1]
        assert not conditions.is_impaired((1, 2))

    run(scenario)
