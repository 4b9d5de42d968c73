"""Messages that arrive again in the simulated network, at a chosen moment."""

from __future__ import annotations

import asyncio

from tests.fakes.manual_clock import ManualClock
from tests.fakes.networks import End, InMemoryNetwork, started
from tinymq.proto import peer_pb2
from tinymq.raft.net.transport import Channel
from tinymq.simulation.link_conditions import STALE_S


def _ack(term: int) -> peer_pb2.Peer:
    return peer_pb2.Peer(append_ack=peer_pb2.AppendAck(term=term))


async def _settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def _terms(end: End) -> list[int]:
    return [message.append_ack.term for _, message, _ in end.events.messages]


def test_stale_messages_arrive_again_while_the_connection_lasts() -> None:
    async def whole() -> None:
        net = InMemoryNetwork(ManualClock())
        a, b = await started(net, 1, 2)
        conditions = net.network._conditions.of((1, 2))
        for term, stale in ((1, 0.0), (2, 1e-9), (3, 1e-9), (4, 0.0)):
            conditions.stale = stale
            assert a.transport.send(2, Channel.CONTROL, _ack(term))
            await _settle()
        assert _terms(b) == [1, 2, 3, 4]
        net.network.deliver_again(1, lambda message: True)
        net.network.deliver_again(2, lambda message: message.append_ack.term < 3)
        await _settle()
        assert _terms(b) == [1, 2, 3, 4, 2]
        net.network.reset(1, 2)
        await _settle()
        net.network.deliver_again(2, lambda message: True)
        await _settle()
        assert _terms(b) == [1, 2, 3, 4, 2]
        assert _terms(a) == []
        await net.stop()

    asyncio.run(whole())


def _state(index: int) -> tuple[peer_pb2.Peer, peer_pb2.Peer, peer_pb2.Peer]:
    return (
        peer_pb2.Peer(install_snapshot=peer_pb2.InstallSnapshot(index=index)),
        peer_pb2.Peer(snapshot_chunk=peer_pb2.SnapshotChunk(index=index)),
        peer_pb2.Peer(append=peer_pb2.Append(commit=index)),
    )


def test_offers_and_pieces_of_a_state_come_again_and_entries_do_not() -> None:
    async def whole() -> None:
        clock = ManualClock()
        net = InMemoryNetwork(clock)
        a, b = await started(net, 1, 2)
        for index, stale in ((1, 0.0), (2, 1.0)):
            net.network._conditions.of((1, 2)).stale = stale
            for message in _state(index):
                assert a.transport.send(2, Channel.BULK, message)
            await _settle()
        sent = [*_state(1), *_state(2)]
        assert [message for _, message, _ in b.events.messages] == sent
        clock.advance(STALE_S)
        await _settle()
        late = [message for _, message, _ in b.events.messages[6:]]
        assert sorted(late, key=str) == sorted(_state(2)[:2], key=str)
        net.network.deliver_again(2, lambda message: message.HasField("install_snapshot"))
        await _settle()
        assert [message for _, message, _ in b.events.messages[8:]] == [_state(1)[0], _state(2)[0]]
        await net.stop()

    asyncio.run(whole())
