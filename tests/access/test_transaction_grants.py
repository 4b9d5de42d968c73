"""What the owner of a transactional id needs, and what somebody needs who ends its transaction. Over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.access.secured import Secured, named, secured
from tinymq.base.errors import Denied, InvalidRequest, NotLeader, NotReady
from tinymq.proto import tinymq_pb2 as pb


@pytest.fixture(scope="module")
def s() -> Iterator[Secured]:
    with secured(nodes=1) as cluster:
        cluster.user("owner", "write transactional_id:billing.*", "write topic:orders")
        cluster.user("watcher", "describe transactional_id:billing.*")
        cluster.user("operator", "alter transactional_id:*")
        yield cluster


def ask(s: Secured, user: str, method: str, **fields: Any) -> Any:
    """The reply, or the error, once the coordinator leads."""
    asked = named(f"Transactions.{method}")
    answers: Iterator[Any] = iter(lambda: s.raw(asked, asked.request(**fields), s.tokens[user]), None)
    return next(answer for answer in answers if not isinstance(answer, NotLeader | NotReady))


def test_an_owner_needs_its_id_and_each_topic(s: Secured) -> None:
    assert type(ask(s, "owner", "RegisterOwner", transactional_id="payroll")) is Denied
    owner = ask(s, "owner", "RegisterOwner", transactional_id="billing.eu")
    begun = ask(
        s, "owner", "BeginTransaction", transactional_id="billing.eu", producer_id=owner.producer_id, epoch=owner.epoch
    ).transaction
    own, other = (
        [pb.TransactionPartition(topic_id=s.topic_id(name), partition=0)] for name in ("orders", "secret-plans")
    )
    fields: dict[str, Any] = {"transactional_id": "billing.eu", "transaction": begun}
    refused = ask(s, "owner", "AddPartitions", **fields, partitions=own + other)
    assert type(refused) is Denied
    assert "secret-plans" not in refused.message
    assert isinstance(ask(s, "owner", "AddPartitions", **fields, partitions=own), pb.AddPartitionsReply)
    for user in ("watcher", "operator"):
        assert type(ask(s, user, "CommitTransaction", **fields)) is Denied
        assert type(ask(s, user, "AbortTransaction", **fields)) is Denied
    assert type(ask(s, "owner", "AbortTransaction", transactional_id="billing.eu")) is Denied, "of whoever owns it"
    ended = ask(s, "operator", "AbortTransaction", transactional_id="billing.eu")
    assert isinstance(ended, pb.AbortTransactionReply)


def test_a_list_leaves_out_what_the_caller_may_not_see(s: Secured) -> None:
    for name in ("billing.us", "payroll"):
        ask(s, "root", "RegisterOwner", transactional_id=name)
    names = {each.transactional_id for each in ask(s, "watcher", "ListTransactionalIds").ids}
    assert "billing.us" in names
    assert "payroll" not in names
    assert {"billing.us", "payroll"} <= {each.transactional_id for each in ask(s, "root", "ListTransactionalIds").ids}
    assert type(ask(s, "watcher", "ListTransactionalIds", transactional_id="payroll")) is Denied


def test_an_operator_who_resolves_needs_the_cluster(s: Secured) -> None:
    ask(s, "owner", "RegisterOwner", transactional_id="billing.eu")  # there is a coordinator
    hung: dict[str, Any] = {
        "transaction": pb.TransactionRef(producer_id=1, epoch=0, number=1), "coordinator": 0, "commit": False,
    }  # fmt: skip
    for user in ("owner", "watcher", "operator"):
        assert type(ask(s, user, "ResolveTransaction", **hung)) is Denied
    assert type(ask(s, "root", "ResolveTransaction", **hung)) is InvalidRequest, "its coordinator lost nothing"
    assert isinstance(ask(s, "watcher", "ListHungTransactions"), pb.ListHungTransactionsReply)
