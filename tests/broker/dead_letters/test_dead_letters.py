"""Dead letters on three real brokers: each record that a group gives up is copied once, and can be sent back."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tinymq import Client, Offset
from tinymq.app.broker_app import BrokerApp
from tinymq.base.errors import InvalidConfig, InvalidRequest
from tinymq.broker.dead_letters.burials import Fate
from tinymq.broker.dead_letters.copy_ids import burial_id
from tinymq.broker.dead_letters.courier import Copied, Courier
from tinymq.broker.dead_letters.dead_letters import DeadLetters
from tinymq.broker.dead_letters.letter import DeadLetter
from tinymq.broker.dead_letters.queue_commands import propose, queue_ref
from tinymq.broker.partition.partition import Partition
from tinymq.cli.main import run
from tinymq.client import Message
from tinymq.proto import partition_pb2 as pb
from tinymq.testing import Cluster

pytest_plugins = ["tinymq.testing.fixture"]

WAIT_S = 40.0


@dataclass
class Leader:
    """The broker that leads partition 0 of a topic."""

    app: BrokerApp
    partition: Partition

    @property
    def dead_letters(self) -> DeadLetters:
        member = self.app._member
        assert member is not None
        return member.dead_letters


class Shop:
    """A topic with records, a queue group, and what the leader of the group would do."""

    def __init__(self, cluster: Cluster, mq: Client, topic: str, count: int = 1, **settings: Any) -> None:
        self.cluster, self.mq, self.topic, self.group = cluster, mq, topic, f"{topic}-g"
        mq.admin.create_topic(topic, replication_factor=3)
        mq.admin.create_group(self.group, topic, kind="queue", settings=settings)
        for number in range(count):
            mq.send(topic, b"value %d" % number, key=b"k", headers={"own": b"h"})

    def leader(self, topic: str = "") -> Leader:
        found: list[Leader] = []

        def look() -> bool:
            for app in self.cluster.brokers.values():
                broker = app.serving.broker
                record = broker.registry.get_topic(topic or self.topic) if broker is not None else None
                partition = broker.replica_host.get(record.topic_id, 0) if broker and record else None
                if partition is not None and partition.leading:
                    found.append(Leader(app, partition))
            return bool(found)

        self.until(lambda: self.cluster.call(look))
        return found[0]

    def until(self, holds: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < deadline_s, "it did not come about"
            threading.Event().wait(0.02)

    def give_up(self, offset: int, reason: str = "no such address") -> Fate:
        leader = self.leader()
        record = DeadLetter(offset, reason, deliveries=3, traceback="Traceback: boom", last_failure_us=7)
        return self.cluster.call(lambda: leader.dead_letters.burials.bury(leader.partition, self.group, record))

    def burials(self) -> int:
        """How many are under way."""
        partition = self.leader().partition
        return self.cluster.call(lambda: len(partition.state.queue_groups.by_name[self.group].burials))

    def is_settled(self, offset: int) -> bool:
        def look() -> bool:
            state = self.leader_now.partition.state
            return state.queue_groups.by_name[self.group].is_settled(offset, state.cursors[self.group].position)

        self.leader_now = self.leader()
        return self.cluster.call(look)

    def bury(self, offset: int, reason: str = "no such address") -> None:
        assert self.give_up(offset, reason) is Fate.BURYING
        self.until(lambda: self.is_settled(offset))

    def letters(self, topic: str = "") -> list[Message]:
        with self.mq.reader(topic or f"{self.topic}.dlq", start="earliest", end="latest") as reader:
            return list(reader)

    def propose(self, command: Callable[[Partition], pb.Command]) -> None:
        leader = self.leader()

        async def run() -> None:
            await propose(leader.partition, command(leader.partition), 5.0)

        self.cluster.run(run())


@pytest.fixture
def mq(tinymq_cluster: Cluster) -> Client:
    return tinymq_cluster.client()


def header(message: Message, name: str) -> bytes | None:
    return dict(message.headers).get(f"tinymq-{name}")


def test_a_record_that_is_given_up_is_a_dead_letter_once_with_its_reason(tinymq_cluster: Cluster, mq: Client) -> None:
    shop = Shop(tinymq_cluster, mq, "da", 2)
    shop.bury(1)
    assert not shop.is_settled(0)
    assert shop.give_up(1) is Fate.BURYING, "a repeat is harmless"
    shop.bury(0)
    first, second = shop.letters()
    assert (first.value, first.key, dict(first.headers)["own"]) == (b"value 1", b"k", b"h")
    assert [header(first, n) for n in ("source-topic", "source-partition", "source-offset", "group")] == [
        b"da", b"0", b"1", b"da-g",
    ]  # fmt: skip
    assert [header(first, n) for n in ("deliveries", "reason", "traceback", "last-failure")] == [
        b"3", b"no such address", b"Traceback: boom", b"7",
    ]  # fmt: skip
    assert second.value == b"value 0"
    made = mq.admin.describe_topic("da.dlq")
    assert made.replication_factor == 3


@pytest.mark.long
def test_the_next_leader_goes_on_with_a_burial_and_copies_nothing_twice(tinymq_cluster: Cluster, mq: Client) -> None:
    shop = Shop(tinymq_cluster, mq, "db", 2)
    shop.bury(0)
    leader = shop.leader()
    target = shop.leader("db.dlq").partition
    place = leader.partition.group.id

    def bury(partition: Partition) -> pb.Command:
        """As a leader does that is deposed before it sends the copy."""
        ref = queue_ref(partition, shop.group)
        copy_id = burial_id(
            place.topic_id, 0, 1, history=ref.history, group_id=ref.group_id, generation=ref.generation
        )  # fmt: skip
        to = target.group.id
        return pb.Command(
            bury=pb.BuryRecord(queue=ref, offset=1, message_id=copy_id.digest, topic_id=to.topic_id, end=0)
        )

    # Leaders of before have sent this copy already: it is there when the burial begins.
    command = bury(leader.partition)
    courier = Courier(leader.app.host)

    async def early() -> Copied:
        from tinymq.broker.dead_letters.letter_batch import lost_letter
        from tinymq.broker.duplicates.message_ids import CopyId

        digest = command.bury.message_id
        return await courier.send(target.group.id, CopyId(digest), 0, lost_letter(b"", 1))

    assert tinymq_cluster.run(early()).duplicate is False
    assert tinymq_cluster.run(early()).duplicate is True
    shop.propose(lambda partition: command)
    tinymq_cluster.call(lambda: leader.dead_letters.group_changed(place))
    shop.until(lambda: shop.is_settled(1))
    assert len(shop.letters()) == 2


@pytest.mark.long
def test_dead_letters_that_were_deleted_are_made_again_and_the_burial_goes_there(
    tinymq_cluster: Cluster, mq: Client
) -> None:
    shop = Shop(tinymq_cluster, mq, "dc", 2)
    shop.bury(0)
    gone = shop.leader("dc.dlq").partition.group.id
    mq.admin.delete_topic("dc.dlq")

    def bury(partition: Partition) -> pb.Command:
        ref = queue_ref(partition, shop.group)
        return pb.Command(bury=pb.BuryRecord(queue=ref, offset=1, message_id=b"i" * 16, topic_id=gone.topic_id, end=0))

    shop.propose(bury)
    leader = shop.leader()
    tinymq_cluster.call(lambda: leader.dead_letters.group_changed(leader.partition.group.id))
    shop.until(lambda: shop.is_settled(1))
    assert [letter.value for letter in shop.letters()] == [b"value 1"]


@pytest.mark.long
def test_a_full_topic_blocks_burials_and_what_retention_removes_meanwhile_is_headers_alone(
    tinymq_cluster: Cluster, mq: Client
) -> None:
    mq.admin.create_topic("dd.dead", replication_factor=3, settings={"max_records": 1})
    shop = Shop(tinymq_cluster, mq, "dd", 3, dlq="dd.dead")
    shop.bury(0)
    shop.give_up(1)
    leader = shop.leader()
    place = leader.partition.group.id
    shop.until(lambda: tinymq_cluster.call(lambda: leader.dead_letters.burials.blocked(place, shop.group)) != "")
    mq.admin.trim("dd", 0, Offset(2))
    mq.admin.alter_topic("dd.dead", {"max_records": 2})
    shop.until(lambda: len(shop.letters("dd.dead")) == 2)
    lost = shop.letters("dd.dead")[1]
    assert (lost.value, header(lost, "lost"), header(lost, "source-offset")) == (None, b"true", b"1")


def test_what_fails_in_dead_letters_goes_to_no_further_ones(tinymq_cluster: Cluster, mq: Client) -> None:
    shop = Shop(tinymq_cluster, mq, "df.dlq", 1)
    assert shop.give_up(0) is Fate.WAITS
    assert "df.dlq.dlq" not in [topic.name for topic in mq.admin.list_topics()]


@pytest.mark.long
def test_a_group_without_dead_letters_drops_the_record(tinymq_cluster: Cluster, mq: Client) -> None:
    shop = Shop(tinymq_cluster, mq, "dg", 1, dlq="none")
    shop.bury(0)
    assert "dg.dlq" not in [topic.name for topic in mq.admin.list_topics()]


def test_a_dead_letter_is_sent_back_once_and_settled(tinymq_cluster: Cluster, mq: Client) -> None:
    shop = Shop(tinymq_cluster, mq, "dh", 1)
    shop.bury(0)
    at = shop.leader("dh.dlq")

    def redrive(run: bytes) -> Any:
        return tinymq_cluster.run(at.dead_letters.redrives.redrive(at.partition, 0, run))

    with mq.admin.hold("dh.dlq", 0, 0):  # otherwise the settled letter may be removed before the second call
        first, again = redrive(b"r" * 16), redrive(b"r" * 16)
    assert (first.topic, first.partition, first.offset, first.settled_before) == ("dh", 0, 1, False)
    assert again.settled_before
    back = shop.letters("dh")[-1]
    assert (back.value, header(back, "redrive-group"), header(back, "reason")) == (b"value 0", b"dh-g", None)
    assert len(shop.letters("dh")) == 2
    with pytest.raises(InvalidRequest, match="no dead letter"):
        tinymq_cluster.run(shop.leader().dead_letters.redrives.redrive(shop.leader().partition, 0, b"r" * 16))


def test_a_group_is_refused_whose_dead_letters_would_be_less_durable(mq: Client) -> None:
    mq.admin.create_topic("di", replication_factor=3)
    mq.admin.create_topic("di.weak", replication_factor=1)
    for settings, why in (({"dlq": "di.weak"}, "1 of 3 replicas"), ({"dlq": "no/topic"}, "dlq")):
        with pytest.raises(InvalidConfig, match=why):
            mq.admin.create_group("di-g", "di", kind="queue", settings=settings)
    long = "d" * 248
    mq.admin.create_topic(long)
    with pytest.raises(InvalidConfig, match="252 characters"):
        mq.admin.create_group("dj-g", long, kind="queue")


@pytest.mark.long
def test_the_story_of_a_record_names_its_dead_letter(tinymq_cluster: Cluster, mq: Client) -> None:
    shop = Shop(tinymq_cluster, mq, "dk", 3)
    shop.bury(0)
    shop.propose(
        lambda partition: pb.Command(
            settle=pb.SettleRecords(queue=queue_ref(partition, shop.group), failed=struct.pack("<QII", 1, 2, 3_600_000))
        )
    )
    at = shop.leader()

    def tell(offset: int) -> Any:
        (story,) = tinymq_cluster.run(at.dead_letters.stories.tell(at.partition, offset))
        return story

    buried, failed, free = map(tell, (0, 1, 2))
    assert (buried.state, buried.dead_topic, buried.dead_partition, buried.dead_offset) == ("buried", "dk.dlq", 0, 0)
    assert (failed.state, failed.deliveries) == ("waiting", 2)
    assert 3_500_000 < failed.wait_ms <= 3_600_000
    assert (free.state, free.kind) == ("free", "queue")


@pytest.mark.long
def test_deleting_a_group_ends_its_burials_and_says_how_many(tinymq_cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("dm.dead", replication_factor=3, settings={"max_records": 1})
    shop = Shop(tinymq_cluster, mq, "dm", 3, dlq="dm.dead")
    shop.bury(0)
    shop.give_up(1)
    shop.give_up(2)
    shop.until(lambda: shop.burials() == 2)
    assert mq.admin.delete_group("dm-g") == 2


# ---- the commands -----------------------------------------------------------------------------------------------

FORGED = "dl-g: settled"


def test_the_commands_show_and_send_back_and_print_no_text_of_a_worker_raw(
    tinymq_cluster: Cluster, mq: Client, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tinymq_cluster, mq, "dl", 2)
    shop.bury(0, reason=f"boom\x1b[2J\n{FORGED}")
    shop.bury(1)
    monkeypatch.setenv("COLUMNS", "200")

    def said(*argv: str) -> str:
        code = run([*argv, "-s", tinymq_cluster.servers])
        out, err = capfd.readouterr()
        assert code == 0, err
        assert "\x1b" not in out + err
        assert FORGED not in (out + err).splitlines()
        return out + err

    assert "boom" in said("dlq", "list", "dl")
    shown = said("dlq", "show", "dl", "0", "0")
    assert f"dl-g: {FORGED}" in shown.splitlines()
    assert "dl-g | Traceback: boom" in shown
    assert said("dlq", "show", "dl", "0", "0", "-o", "json")
    assert "has returned" in said("dlq", "replay", "dl", "0", "0", "builtins:repr")
    assert run(["dlq", "replay", "dl", "0", "0", "json:loads", "-s", tinymq_cluster.servers]) != 0
    assert "TypeError" in capfd.readouterr().err
    assert "would be sent back" in said("dlq", "redrive", "dl", "--dry-run")
    assert len(shop.letters("dl")) == 2
    assert "buried" in said("why", "dl", "0", "0")
    assert "sent back" in said("dlq", "redrive", "dl", "0", "0")
    assert "settled before" not in said("dlq", "redrive", "dl")
    assert len(shop.letters("dl")) == 4
    shop.bury(2)
    assert "would be purged" in said("dlq", "purge", "dl", "--dry-run")
    assert json.loads(said("dlq", "purge", "dl", "--yes", "-o", "json"))["partitions"] == [
        {"partition": 0, "purged": 1}
    ]
    assert json.loads(said("dlq", "list", "dl", "-o", "json"))["letters"] == []
    mq.admin.create_topic("dl-live")
    mq.send("dl-live", b"no dead letter")
    assert json.loads(said("dlq", "list", "dl-live", "-o", "json"))["letters"] == [], "nothing of it was given up"
