"""What the maker of a group needs: its topics, patterns, and the topics of its dead letters. Over real sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.access.secured import Secured, secured
from tinymq.base.errors import Denied


@pytest.fixture(scope="module")
def s() -> Iterator[Secured]:
    with secured(nodes=1) as cluster:
        cluster.root.admin.create_topic("_hidden", 1)
        cluster.root.admin.create_group("internal", "orders")  # makes the internal topic of stream groups
        yield cluster


def test_a_queue_group_needs_grants_for_its_dead_letters(s: Secured) -> None:
    mq = s.user("maker", "create group:*", "read topic:orders", "read group:*", "write topic:orders")
    with pytest.raises(Denied, match=r"may not create topic 'orders.dlq'"):
        mq.admin.create_group("q", "orders", kind="queue")
    s.allow("maker", "create topic:orders.dlq")
    with pytest.raises(Denied, match=r"may not write topic 'orders.dlq'"):
        mq.admin.create_group("q", "orders", kind="queue")
    mq.admin.create_group("none", "orders", kind="queue", settings={"dlq": "none"})
    mq.admin.create_group("stream", "orders")
    s.allow("maker", "write topic:orders.dlq")
    mq.admin.create_group("q", "orders", kind="queue", settings={"retry_ms": [0]})
    with mq.worker("orders", group="q") as worker:  # and its brokers bury there
        mq.send("orders", b"bad")
        for _ in range(2):
            worker.poll(20.0)[0].nack()
    s.cluster.wait_until(lambda: s.cluster.registry(1).get_topic("orders.dlq") is not None)


def test_a_named_topic_of_dead_letters_needs_the_same(s: Secured) -> None:
    mq = s.user("namer", "create group:*", "alter group:*", "read topic:orders", "write topic:letters")
    with pytest.raises(Denied, match=r"may not create topic 'letters'"):
        mq.admin.create_group("named", "orders", kind="queue", settings={"dlq": "letters"})
    mq.admin.create_group("later", "orders", kind="queue", settings={"dlq": "none"})
    for dlq, name in (("letters", "letters"), ("", "orders.dlq")):
        with pytest.raises(Denied, match=rf"may not create topic '{name}'"):
            mq.admin.alter_group("later", {"dlq": dlq})
    s.allow("namer", "create topic:letters", "create topic:orders.dlq", "write topic:orders.dlq")
    mq.admin.alter_group("later", {"dlq": "letters"})
    mq.admin.alter_group("later", {"dlq": ""})


@pytest.mark.parametrize(
    ("pattern", "grant", "allowed"),
    [
        ("_*", "read topic:_*", True),
        ("_*", "read topic:*", True),
        ("_*", "read topic:_hidden", False),
        ("_*", "read topic:__*", False),  # of internal topics: narrower than the pattern
        ("*", "read topic:_*", False),
        ("?hidden", "read topic:_*", False),  # its first letter may be any
        ("_?idden", "read topic:_*", True),
        ("__*", "read topic:orders*", False),
    ],
)
def test_a_pattern_needs_a_grant_for_all_that_it_may_match(s: Secured, pattern: str, grant: str, allowed: bool) -> None:
    name = f"p{abs(hash((pattern, grant)))}"
    mq = s.user(name, "create group:*", grant)
    if not allowed:
        with pytest.raises(Denied, match="may not read"):
            mq.admin.create_group(name, pattern)
        return
    mq.admin.create_group(name, pattern)
    groups = s.cluster.brokers[1].serving.groups
    assert groups is not None
    made = s.cluster.call(lambda: groups.known.get(name))
    assert made is not None
    internal = [topic.name for topic in s.cluster.registry(1).get_all_topics() if topic.name.startswith("__")]
    assert internal
    assert not any(made.reads(topic) for topic in internal)  # whatever the pattern and the grant say


def test_a_pattern_of_a_queue_group_needs_its_dead_letters_too(s: Secured) -> None:
    mq = s.user("pattern", "create group:*", "read topic:orders*", "write topic:orders*")
    with pytest.raises(Denied, match=r"may not create topic 'orders\*'"):
        mq.admin.create_group("wide", "orders*", kind="queue")
    s.allow("pattern", "create topic:orders*")
    mq.admin.create_group("wide", "orders*", kind="queue")
