"""What a sender of half messages needs, and a checker. Over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.access.secured import Secured, named, secured
from tinymq.base.errors import Denied, NotLeader, NotReady, OutcomeUnknown
from tinymq.proto import tinymq_pb2 as pb

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def s() -> Iterator[Secured]:
    with secured(nodes=1) as cluster:
        cluster.user("sender", "write producer_group:checkout", "write topic:orders")
        cluster.user("checker", "write producer_group:check*")
        cluster.user("watcher", "describe producer_group:checkout")
        yield cluster


def ask(s: Secured, user: str, method: str, **fields: Any) -> Any:
    """The reply, or the error, once the coordinator leads."""
    asked = named(f"HalfMessages.{method}")
    answers: Iterator[Any] = iter(lambda: s.raw(asked, asked.request(**fields), s.tokens[user]), None)
    return next(answer for answer in answers if not isinstance(answer, NotLeader | NotReady))


def begin(s: Secured, user: str, topic: str = "orders", group: str = "checkout") -> Any:
    return ask(s, user, "BeginHalfMessage", producer_group=group, topic_id=s.topic_id(topic), partition=0)


def test_a_sender_needs_its_group_and_its_topic(s: Secured) -> None:
    begun = begin(s, "sender")
    assert isinstance(begun, pb.BeginHalfMessageReply)
    assert type(begin(s, "sender", "secret-plans")) is Denied
    assert type(begin(s, "sender", group="payroll")) is Denied
    assert type(begin(s, "checker")) is Denied, "it may write to no topic"
    end: dict[str, Any] = {"producer_group": "checkout", "transaction": begun.transaction, "commit": False}
    assert type(ask(s, "watcher", "EndHalfMessage", **end)) is Denied
    other = end | {"producer_group": "checks"}
    assert type(ask(s, "checker", "EndHalfMessage", **other)) is OutcomeUnknown, "of another group"
    assert isinstance(ask(s, "checker", "EndHalfMessage", **end), pb.EndHalfMessageReply)


def test_a_checker_needs_its_group(s: Secured) -> None:
    wait: dict[str, Any] = {"producer_group": "checkout", "member": b"m" * 16}
    assert type(ask(s, "watcher", "AwaitChecks", **wait)) is Denied
    assert isinstance(ask(s, "checker", "AwaitChecks", **wait), pb.AwaitChecksReply)


def test_a_list_leaves_out_what_the_caller_may_not_see(s: Secured) -> None:
    begin(s, "root", group="payroll")
    begin(s, "root")
    for user, expected in (("watcher", {"checkout"}), ("root", {"checkout", "payroll"})):
        found = ask(s, user, "ListHalfMessages").messages
        assert {each.producer_group for each in found} == expected
    assert type(ask(s, "watcher", "ListHalfMessages", producer_group="payroll")) is Denied
