"""Messages between brokers, watched and forged; and a helper that proves that a check can fail."""

from __future__ import annotations

from typing import Any

import pytest

from tests.raft.harness import Broker, Cluster, Scenario, simulate
from tests.raft.values import GROUP
from tinymq.format.entry import ENTRY_VERSION, Entry, NewEntry, make_entry
from tinymq.proto import peer_pb2 as pb
from tinymq.raft.net.transport import Channel
from tinymq.raft.rules.messages import Append, AppendAck, Vote, to_wire


def fails(scenario: Scenario, **options: Any) -> None:
    """Assert that the scenario fails with a mutant in place."""
    with pytest.raises(AssertionError):
        simulate(scenario, **options)


def listen(cluster: Cluster) -> list[tuple[int, int, Channel, pb.Peer, bytes]]:
    """Collect every message that is delivered from now on."""
    heard: list[tuple[int, int, Channel, pb.Peer, bytes]] = []
    cluster.network.on_delivered = lambda *message: heard.append(message)
    return heard


def appends(heard: list[tuple[int, int, Channel, pb.Peer, bytes]], to: int) -> list[pb.Append]:
    return [m.append for _, b, _, m, _ in heard if b == to and m.HasField("append")]


def deliver(broker: Broker, source: int, message: Append | AppendAck | Vote) -> None:
    """Deliver a message as if `source` had sent it."""
    head, body = to_wire(GROUP, message)
    broker.process.do(lambda: broker.host._router.on_message(source, head, b"".join(body)))


def entry_after(
    broker: Broker, kind: int, term: int, payload: bytes = b"", version: int = ENTRY_VERSION
) -> Entry:  # fmt: skip
    log = broker.group().log
    return make_entry(
        NewEntry(kind, payload, version=version),
        index=log.last_index + 1,
        term=term,
        prev_crc=log.last_crc,
        base_offset=log.next_offset,
        append_time_us=1,
    )


def append_to(broker: Broker, entry: Entry) -> Append:
    log = broker.group().log
    return Append(broker.group().term, log.last_index, log.last_term, 1, [entry])
