"""The grants that a transaction needs to ack a queue group's jobs. Over real sockets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.access.secured import Secured, named, secured
from tests.fakes.patience import PATIENT
from tinymq.base.errors import Denied, NotLeader, NotReady, TinymqError
from tinymq.broker.state.cursor import CursorKind
from tinymq.broker.state.staged import TransactionId
from tinymq.client import Job
from tinymq.client.work.transactional_jobs import divided, note_staged
from tinymq.proto import tinymq_pb2 as pb

pytestmark = pytest.mark.long
POLL_S = 60.0
PATIENT_GROUP = {"dlq": "none", "lease_ms": 600_000, "ask_ms": 60_000, "session_ms": 600_000, "rejoin_ms": 300_000}
GRANTS = ("write transactional_id:mailer-*", "read group:mailer", "read topic:jobs", "write topic:results")


@pytest.fixture(scope="module")
def s() -> Iterator[Secured]:
    with secured(nodes=1, timing=PATIENT) as cluster:
        for topic in ("jobs", "results"):
            cluster.root.admin.create_topic(topic, 1)
        cluster.root.admin.create_group("mailer", "jobs", kind="queue", settings=PATIENT_GROUP)
        cluster.user("mailer", *GRANTS)
        yield cluster


def staged(s: Secured) -> Mapping[int, TransactionId]:
    """The records whose acks are staged, with their transactions, as the partition has applied them."""
    broker, topic = s.cluster.brokers[1].serving.broker, s.cluster.registry(1).get_topic("jobs")
    assert broker is not None
    assert topic is not None
    partition = broker.replica_host.get(topic.topic_id, 0)
    assert partition is not None
    return partition.state.queue_groups.by_name["mailer"].staged


class MailerTransaction:
    """A transaction of the mailer with the jobs and the results in it, and its calls as any user would make them."""

    def __init__(self, s: Secured, name: str, job: Job) -> None:
        self._s = s
        owner = self._ask("mailer", "RegisterOwner", pb.RegisterOwnerRequest(transactional_id=name))
        begin = pb.BeginTransactionRequest(
            transactional_id=name, producer_id=owner.producer_id, epoch=owner.epoch, timeout_ms=900_000
        )
        begun = self._ask("mailer", "BeginTransaction", begin)
        of = {"transactional_id": name, "transaction": begun.transaction}
        jobs, results = (
            pb.TransactionPartition(topic_id=s.topic_id(topic), partition=0) for topic in ("jobs", "results")
        )
        (part,) = divided([job])
        self._part = part
        place = pb.BatchTransaction(transaction=begun.transaction, coordinator=owner.coordinator, number=0)
        stage = pb.ChannelCommand(
            partition=0, channel="mailer", kind=CursorKind.QUEUE, group_id=part.cursor.group.group_id,
            stage_acks=part.request(place),
        )  # fmt: skip
        self._requests: dict[str, Any] = {
            "RegisterOwner": pb.RegisterOwnerRequest(transactional_id=name),
            "BeginTransaction": begin,
            "AddPartitions": pb.AddPartitionsRequest(**of, partitions=[results], offsets=[jobs]),
            "Change": pb.ChannelsRequest(topic_id=s.topic_id("jobs"), commands=[stage]),
            "CommitTransaction": pb.CommitTransactionRequest(**of),
            "AbortTransaction": pb.AbortTransactionRequest(**of),
        }

    async def note_staged(self) -> None:
        """Tell the worker that the job is the transaction's, as its client does when it has staged the ack."""
        note_staged(self._part.work, self._part.jobs)

    def ask(self, user: str, method: str) -> Any:
        """The reply, or the error."""
        return self._ask(user, method, self._requests[method])

    def _ask(self, user: str, method: str, request: Any) -> Any:
        """The same, once the coordinator and the partition lead."""
        asked = named(f"Channels.{method}" if method == "Change" else f"Transactions.{method}")
        answers: Iterator[Any] = iter(lambda: self._s.raw(asked, request, self._s.tokens[user]), None)
        return next(answer for answer in answers if not isinstance(answer, NotLeader | NotReady))


def test_the_mailer_acks_jobs_with_its_results(s: Secured) -> None:
    mailer = s.client("mailer")
    s.root.send("jobs", b"mail 16")
    with mailer.worker("jobs", group="mailer") as worker:
        jobs = worker.poll(POLL_S, 1)
        with mailer.transaction("mailer-eu") as tx:
            tx.ack(*jobs)
            tx.send("results", b"mailed 16")
        assert [cursor.lag for cursor in s.root.admin.group_lag("mailer")] == [0]


@pytest.mark.parametrize(
    ("missing", "refused"),
    [
        (
            "write transactional_id:mailer-*",
            ["RegisterOwner", "BeginTransaction", "AddPartitions", "CommitTransaction"],
        ),
        ("read topic:jobs", ["AddPartitions", "Change"]),
        ("read group:mailer", ["Change"]),
        ("write topic:results", ["AddPartitions"]),
    ],
)
def test_a_user_without_a_grant_is_refused_by_its_name(s: Secured, missing: str, refused: list[str]) -> None:
    user, number = f"lacks-{GRANTS.index(missing)}", GRANTS.index(missing)
    s.user(user, *(grant for grant in GRANTS if grant != missing), "describe topic:*")
    operation, _, resource = missing.partition(" ")
    resource = resource.replace("*", str(number))
    s.root.send("jobs", b"mail 17")
    with s.root.worker("jobs", group="mailer") as worker:
        (job,) = worker.poll(POLL_S, 1)
        transaction = MailerTransaction(s, f"mailer-{number}", job)
        for method in refused:
            error = transaction.ask(user, method)
            assert type(error) is Denied, method
            assert f"{user!r} may not {operation} " in error.message
            assert error.hint.endswith(f"tinymq acl grant {user} {operation} {resource}"), method
        assert not staged(s)
        s.allow(user, missing)  # it lacked nothing else
        for method in ("AddPartitions", "Change"):
            answer = transaction.ask(user if method in refused else "mailer", method)
            assert not isinstance(answer, TinymqError), answer
        assert len(staged(s)) == 1
        s.root._loop_thread.run(transaction.note_staged())
        assert not isinstance(transaction.ask("mailer", "AbortTransaction"), TinymqError)
        (again,) = worker.poll(POLL_S, 1)
        assert (again.offset, again.delivery) == (job.offset, 1)
        again.ack()


def test_a_grant_that_is_revoked_before_the_commit(s: Secured) -> None:
    mq = s.user("revoked", *GRANTS)
    s.root.send("jobs", b"mail 18")
    worker = mq.worker("jobs", group="mailer")
    tx = mq.transaction("mailer-18")
    tx.begin()
    tx.ack(*worker.poll(POLL_S, 1))
    tx.send("results", b"mailed 18")
    s.refuse("revoked", "read group:mailer")
    with pytest.raises(Denied, match="may not read group 'mailer'"):
        tx.commit()
    assert not staged(s)
    assert [cursor.lag for cursor in s.root.admin.group_lag("mailer")] == [1]
    with s.root.reader("results", end="latest") as reader:
        assert b"mailed 18" not in [message.value for message in reader]
