"""Workers of a queue group on a real cluster: records are leased, settled one by one, delivered again, and kept over a
change of leaders."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.fakes.batches import payload
from tests.fakes.raw_client import WAIT_S, Raw, batch, entries, until
from tests.fakes.raw_worker import LIMITS, Place, RawWorker, Workers
from tinymq.broker.dead_letters.letter import CAUSE, DELIVERIES, OFFSET, REASON
from tinymq.broker.work.last_failures import WORDS, FailureCause
from tinymq.format.batch import decode_batch, encode, pack_batch
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.testing.cluster import Cluster

QUICK = {"session_ms": "3000", "rejoin_ms": "1500", "retry_ms": "none"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as cluster:
        yield cluster


class Bench:
    """One topic with one queue group."""

    def __init__(self, cluster: Cluster, name: str, workers: Workers) -> None:
        self.cluster, self.name, self._workers = cluster, name, workers
        self.group = pb.GroupInfo()
        self.place: Place = (b"", 0)

    @property
    def leader(self) -> int:
        return self.cluster.wait_leader(self.name)

    @property
    def raw(self) -> Raw:
        return self._workers.raw(self.cluster.address(self.leader))

    async def make(self, records: int, each: int = 1, **settings: str) -> None:
        raw = self._workers.raw(self.cluster.address(1))
        topic = await raw.create(self.name)
        self.place = (topic.topic_id, 0)
        given = [pb.Setting(name=name, value=value) for name, value in settings.items()]
        request = pb.CreateGroupRequest(
            name=f"{self.name}-g",
            kind="queue",
            topics=[self.name],
            settings=given,
            timeout_ms=20_000,
            command_id=os.urandom(16),
        )
        reply = await pb_grpc.GroupsStub(raw.channel).CreateGroup(request, timeout=WAIT_S)
        assert not reply.HasField("error"), reply.error
        self.group = reply.group
        for _ in range(records):
            await self.send(each)

    async def send(self, count: int = 1) -> None:
        (sent,) = await self.raw.produce(batch(self.place[0], payload(count)))
        assert not sent.HasField("error"), sent.error

    async def worker(self, session: bytes = b"a", **fields: object) -> RawWorker:
        worker = self._workers.worker(self.cluster.address(self.leader), self.group, self.place, session)
        await worker.attach(**fields)  # type: ignore[arg-type]
        return worker

    async def letters(self) -> list[dict[str, bytes]]:
        """The headers of the dead letters."""
        name = f"{self.name}.dlq"
        raw = self._workers.raw(self.cluster.address(self.cluster.wait_leader(name)))
        reply = await raw.fetch((await raw.topic(name)).topic_id)
        found = [decode_batch(entry.batch, LIMITS).column(2).to_pylist() for entry in entries(reply)]
        return [{each["key"]: each["value"] for each in headers} for batch in found for headers in batch]

    async def lag(self) -> int:
        request = pb.ListChannelsRequest(topic_id=self.place[0], partitions=[0], groups=True)
        reply = await pb_grpc.ChannelsStub(self.raw.channel).List(request, timeout=WAIT_S)
        return reply.partitions[0].channels[0].lag

    async def seek(self, to_us: int) -> None:
        """Move the group: to the offset 0 (-4), or to the end (-1)."""
        seek = pb.ChannelSeek(epoch=0, request_id=bytes(16), to_us=to_us, offset=0)
        command = pb.ChannelCommand(
            partition=0, channel=self.group.name, seek=seek, kind=2, group_id=self.group.group_id
        )
        request = pb.ChannelsRequest(topic_id=self.place[0], timeout_ms=10_000, commands=[command])
        reply = await pb_grpc.ChannelsStub(self.raw.channel).Change(request, timeout=WAIT_S)
        assert not reply.outcomes[0].HasField("error"), reply

    def state(self):  # type: ignore[no-untyped-def]
        """The group's applied state at the leader."""
        broker = self.cluster.brokers[self.leader].serving.broker
        assert broker is not None
        partition = broker.replica_host.get(*self.place)
        assert partition is not None
        return partition.state.queue_groups.by_name[self.group.name]


def on(cluster: Cluster, name: str, test: Callable[[Bench], Awaitable[None]]) -> None:
    """Run a test on a loop of its own."""

    async def run() -> None:
        workers = Workers()
        try:
            await test(Bench(cluster, name, workers))
        finally:
            await workers.close()

    asyncio.run(run())


def test_records_are_granted_and_what_is_acked_is_settled(cluster: Cluster) -> None:
    async def test(b: Bench) -> None:
        await b.make(records=3, each=4)
        one = await b.worker(credit=5)
        await one.until(lambda: len(one.grants) == 5)
        assert await one.do("ACK", 0, 1, 2, 3, 4) == []
        assert await b.lag() == 7
        one.credit(12)
        await one.until(lambda: len(one.grants) == 12)
        assert await one.do("ACK", 6, 8, 10) == []
        assert await b.lag() == 4, "5, 7, 9 and 11 are not settled"
        assert await one.do("ACK", 5, 7, 9, 11) == []
        assert await b.lag() == 0
        await b.send()
        one.credit(13)
        await one.until(lambda: 12 in one.grants)
        assert await one.do("ACK", 12) == []

    on(cluster, "acks", test)


def test_a_part_of_a_batch_is_sent_alone(cluster: Cluster) -> None:
    async def test(b: Bench) -> None:
        await b.make(records=1, each=1000)
        one, two = await b.worker(b"a", credit=0), await b.worker(b"b", credit=0)
        one.credit(10)
        await one.until(lambda: len(one.values) == 10)
        two.credit(3)
        await two.until(lambda: len(two.values) == 3)
        assert sorted(two.values) == [10, 11, 12]
        assert len(set(one.values.values()) | set(two.values.values())) == 13

    on(cluster, "slices", test)


def test_a_failed_delivery_comes_again_under_the_next_number_after_its_delay(cluster: Cluster) -> None:
    async def test(b: Bench) -> None:
        await b.make(records=2, retry_ms="none", deliveries_max="5")
        one = await b.worker()
        await one.until(lambda: len(one.grants) == 2)
        first = one.grants.pop(0)
        one.grants[0] = first
        assert await one.do("NACK", 0, delay_ms=300) == []
        failed = b.state().failures[0]
        await one.until(lambda: one.grants[0].runs[0].delivery == 2)
        broker = b.cluster.brokers[b.leader].serving.broker
        assert broker is not None
        partition = broker.replica_host.get(*b.place)
        assert partition is not None
        assert partition.group.append_time_now_us() >= failed.not_before_us
        one.grants[0], second = first, one.grants[0]
        assert await one.do("NACK", 0) == ["LeaseLost"], "an older delivery fails no more"
        one.grants[0] = second
        assert await one.do("ACK", 0, 1) == []
        assert await b.lag() == 0

    on(cluster, "nacks", test)


def test_a_record_at_its_limit_or_rejected_becomes_a_dead_letter(cluster: Cluster) -> None:
    async def test(b: Bench) -> None:
        await b.make(records=3, retry_ms="none", deliveries_max="2")
        one = await b.worker()
        await one.until(lambda: len(one.grants) == 3)
        assert await one.do("REJECT", 1, error="not a number") == []
        assert await one.do("NACK", 2) == []
        await one.until(lambda: one.grants[2].runs[0].delivery == 2)
        assert await one.do("NACK", 2, error="Traceback:\n  line 1\nValueError: again") == []
        assert await one.do("ACK", 0) == []
        await until_lag(b, 0)
        assert one.grants[1].runs[0].delivery == 1
        letters = await b.letters()
        assert [letter[OFFSET] for letter in letters] == [b"1", b"2"]
        assert [letter[REASON] for letter in letters] == [b"not a number", b"ValueError: again"]
        assert [letter[DELIVERIES] for letter in letters] == [b"1", b"2"]
        assert [letter[CAUSE] for letter in letters] == [b"reject", b"nack"]

    on(cluster, "rejects", test)


def test_a_dead_letter_says_that_its_worker_was_silent(cluster: Cluster) -> None:
    """Record 0 outlives its lease, and record 1 its worker."""

    async def test(b: Bench) -> None:
        await b.make(records=2, retry_ms="none", lease_ms="1000", ask_ms="100", session_ms="3000")
        one = await b.worker(b"a", credit=1)
        await one.until(lambda: 0 in one.grants)
        two = await b.worker(b"b", credit=1)
        await two.until(lambda: 1 in two.grants)
        one.settle("START", 0, answer=False)
        two.settle("START", 1, answer=False)
        await two.until(lambda: two.pongs or not two.send(ping=1))
        two.detach(leave=True)
        await one.until(lambda: 0 in one.asked)
        await until_lag(b, 0)
        letters = {letter[OFFSET]: (letter[CAUSE], letter[REASON], letter[DELIVERIES]) for letter in await b.letters()}
        assert letters == {
            b"0": (b"lease_expired", WORDS[FailureCause.LEASE_EXPIRED].encode(), b"1"),
            b"1": (b"session_ended", WORDS[FailureCause.SESSION_ENDED].encode(), b"1"),
        }

    on(cluster, "silent", test)


async def until_lag(b: Bench, lag: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while await b.lag() != lag:
            await asyncio.sleep(0.02)


def test_what_is_released_goes_to_another_worker_and_counts_as_no_failure(cluster: Cluster) -> None:
    async def test(b: Bench) -> None:
        await b.make(records=2)
        one = await b.worker(b"a", credit=2)
        await one.until(lambda: len(one.grants) == 2)
        two = await b.worker(b"b")
        one.settle("START", 0, answer=False)
        assert await one.do("RELEASE", 0, 1) == ["LeaseLost"], "0 was started"
        await two.until(lambda: 1 in two.grants)
        assert two.grants[1].runs[0].delivery == 1
        one.detach(leave=True)
        await two.until(lambda: 0 in two.grants)
        assert two.grants[0].runs[0].delivery == 2, "its worker left in the middle of it"

    on(cluster, "releases", test)


@pytest.mark.long  # it waits for leases and sessions to end
def test_the_death_of_a_worker_charges_what_it_had_started_only(cluster: Cluster) -> None:
    async def test(b: Bench) -> None:
        await b.make(records=3, **QUICK, deliveries_max="5")
        one = await b.worker(b"a")
        await one.until(lambda: len(one.grants) == 3)
        one.settle("START", 1, answer=False)
        one.send(ping=1)
        await one.until(lambda: one.pongs == 1)
        await one.break_off()
        two = await b.worker(b"b")
        await two.until(lambda: len(two.grants) == 3)
        assert [two.grants[offset].runs[0].delivery for offset in range(3)] == [1, 2, 1]
        assert await two.do("ACK", 0, 1, 2) == []

    on(cluster, "deaths", test)


@pytest.mark.long  # it waits for leases and sessions to end
def test_a_worker_is_asked_about_a_lease_that_is_over(cluster: Cluster) -> None:
    async def test(b: Bench) -> None:
        await b.make(records=2, lease_ms="3000", ask_ms="1000", retry_ms="none", deliveries_max="5")
        one, two = await b.worker(b"a", credit=2), await b.worker(b"b", credit=0)
        await one.until(lambda: len(one.grants) == 2)
        one.settle("START", 0, 1, answer=False)
        await one.until(lambda: {0, 1} <= set(one.asked))
        assert await one.do("EXTEND", 0) == []
        two.credit(10)
        await two.until(lambda: 1 in two.grants)
        assert two.grants[1].runs[0].delivery == 2
        assert 0 not in two.grants
        assert one.revoked == [], "record 1 was begun: the answer to its ack tells"
        assert await one.do("ACK", 0) == []
        assert await one.do("ACK", 1) == ["LeaseLost"]

    on(cluster, "asks", test)


def test_a_worker_is_told_of_a_lease_that_ran_out_before_it_began_the_record(cluster: Cluster) -> None:
    async def test(b: Bench) -> None:
        await b.make(records=1, lease_ms="1000", ask_ms="100")
        one, two = await b.worker(b"a", credit=1), await b.worker(b"b", credit=0)
        assert one.attached is not None
        assert (one.attached.lease_ms, one.attached.session_ms, one.attached.rejoin_ms) == (1000, 10_000, 3000)
        await one.until(lambda: 0 in one.grants)
        await one.until(lambda: one.revoked == [0])
        two.credit(1)
        await two.until(lambda: 0 in two.grants)
        assert two.grants[0].runs[0].delivery == 1

    on(cluster, "runs-out", test)


def test_a_seek_takes_all_records_back(cluster: Cluster) -> None:
    async def test(b: Bench) -> None:
        await b.make(records=3)
        one = await b.worker()
        await one.until(lambda: len(one.grants) == 3)
        assert await one.do("ACK", 0) == []
        old = dict(one.grants)
        await b.seek(to_us=-4)
        await one.until(lambda: {1, 2} <= set(one.revoked))
        await one.until(lambda: one.grants[0] != old[0] and one.grants[2] != old[2])
        new, one.grants = one.grants, old
        assert await one.do("ACK", 1) == ["LeaseLost"]
        one.grants = new
        assert await one.do("ACK", 0, 1, 2) == []

    on(cluster, "seeks", test)


@pytest.mark.long  # the search of leases has the rule; here it waits for a dead letter
def test_records_of_a_key_come_one_at_a_time_and_in_order(cluster: Cluster) -> None:
    async def test(b: Bench) -> None:
        await b.make(records=0, ordering="key", retry_ms="none", deliveries_max="3")
        for data in (keyed_payload(b"x", b"x", b"y"), keyed_payload(b"y", None, b"x")):
            (sent,) = await b.raw.produce(batch(b.place[0], data))
            assert not sent.HasField("error"), sent.error
        one, two = await b.worker(b"a", credit=2), await b.worker(b"b", credit=0)
        await one.until(lambda: set(one.grants) == {0, 2})
        two.credit(10)
        await two.until(lambda: set(two.grants) == {4})
        assert await one.do("NACK", 0, delay_ms=200) == []
        await two.until(lambda: set(two.grants) == {0, 4})
        assert await two.do("ACK", 0) == []
        await two.until(lambda: set(two.grants) == {0, 1, 4})
        assert await one.do("ACK", 2) == []
        await two.until(lambda: set(two.grants) == {0, 1, 3, 4})
        assert await two.do("REJECT", 1) == []
        await two.until(lambda: 5 in two.grants)  # once the dead letter of 1 is there
        assert await two.do("ACK", 3, 4, 5) == []
        assert await b.lag() == 0

    on(cluster, "keys", test)


def keyed_payload(*keys: bytes | None) -> bytes:
    message = encode(list(keys), [b"v"] * len(keys), None, [0] * len(keys))
    return pack_batch(message, record_count=len(keys))


def test_an_attachment_says_which_lost_grants_are_of_settled_records(cluster: Cluster) -> None:
    """An ack without an answer was carried out, and a prefetched record was free at once. A seek is another matter."""

    async def test(b: Bench) -> None:
        await b.make(2, **QUICK)
        worker = await b.worker()
        await worker.until(lambda: len(worker.grants) == 2)
        worker.settle("ACK", 0)
        while await b.lag() > 1:
            await asyncio.sleep(0)
        await worker.break_off()
        again = await b.worker(credit=0, held=worker.held(1), started=worker.held(0))
        assert again.attached is not None
        assert sorted(run.offset for grants in again.attached.lost for run in grants.runs) == [0, 1]
        assert list(again.attached.settled) == worker.held(0)
        await b.seek(to_us=-1)
        await again.break_off()
        last = await b.worker(started=worker.held(0))
        assert last.attached is not None
        assert (list(last.attached.lost), list(last.attached.settled)) == (worker.held(0), [])

    on(cluster, "answers", test)


def test_after_failover_nobody_gets_what_a_live_worker_holds(cluster: Cluster) -> None:
    async def test(b: Bench) -> None:
        await b.make(records=6)
        one = await b.worker(b"a", credit=3)
        two = await b.worker(b"b", credit=1)
        await one.until(lambda: len(one.grants) == 3)
        await two.until(lambda: len(two.grants) == 1)
        one.settle("START", 0, answer=False)
        old = b.leader
        await b.raw.admin.TransferLeader(
            pb.TransferLeaderRequest(topic=b.name, partition=0, to=old % 3 + 1, timeout_ms=20_000), timeout=WAIT_S
        )
        await one.until(lambda: one.ended is not None and one.ended.error.code == "NotLeader")
        await until(lambda: b.leader == old % 3 + 1)
        held = dict(one.grants)
        three = await b.worker(b"b", held=two.held(*two.grants))
        assert not three.grants, "the other worker may hold any of them"
        again = await b.worker(b"a", credit=0, held=one.held(1, 2), started=one.held(0))
        assert again.attached is not None
        assert again.attached.known
        assert not again.attached.lost
        await three.until(lambda: {4, 5} <= set(three.grants))
        again.grants = held
        assert await again.do("ACK", 0, 1, 2) == []
        assert not {0, 1, 2} & set(three.grants)
        three.grants |= two.grants
        assert await three.do("ACK", 3, 4, 5) == []
        assert await b.lag() == 0

    on(cluster, "failovers", test)
