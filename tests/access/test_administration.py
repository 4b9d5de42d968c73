"""How a cluster comes to check its callers, and how its owner is never shut out: over real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.access.secured import CALL_S, Secured, secured
from tinymq import Client
from tinymq.base.errors import AlreadyExists, Denied, InvalidConfig, NotFound, TinymqError, Unauthenticated, WrongSecret
from tinymq.base.identity.token import SecretText
from tinymq.rpc.operator_calls.first_administrator import make_administrator
from tinymq.testing import Cluster
from tinymq.testing.cluster import SECRET


@pytest.fixture(scope="module")
def s() -> Iterator[Secured]:
    with secured(metrics=True) as cluster:
        yield cluster


def refused(work: Callable[[], object]) -> TinymqError:
    with pytest.raises(TinymqError) as caught:
        work()
    return caught.value


def administrator(cluster: Cluster, name: str, secret: bytes = SECRET) -> str:
    return asyncio.run(make_administrator(cluster.servers.split(","), secret, name, CALL_S))


def test_the_checks_cannot_be_switched_on_by_mistake() -> None:
    """By nobody, by a user who is no administrator, or with a token that does not work: all would be shut out."""
    with Cluster(nodes=1) as cluster:
        open_to_all = cluster.client()
        assert isinstance(refused(lambda: open_to_all.access.switch(True)), Unauthenticated)
        assert isinstance(refused(lambda: open_to_all.access.create_user("intruder")), Unauthenticated)
        wrong = refused(lambda: cluster.client(token="tmq_wrong").access.switch(True))
        assert isinstance(wrong, Unauthenticated)
        assert type(refused(lambda: administrator(cluster, "me", b"another secret of sixteen"))) is WrongSecret
        root = cluster.client(token=administrator(cluster, "root"))
        root.access.create_user("user")
        user = cluster.client(token=root.access.create_token("user"))
        assert type(refused(lambda: user.access.switch(True))) is Denied
        open_to_all.admin.create_topic("t")  # nobody is checked, still
        assert user.access.who_am_i().enabled is False
        assert root.access.switch(True) == ["root"]
        cluster.wait_until(lambda: cluster.brokers[1].gate.on)
        assert isinstance(refused(lambda: open_to_all.admin.list_topics()), Unauthenticated)
        root.access.switch(False)
        cluster.wait_until(lambda: not cluster.brokers[1].gate.on)
        assert [topic.name for topic in open_to_all.admin.list_topics()] == ["t"]


def test_the_checks_outlive_a_restart_and_nobody_slips_in_before(s: Secured) -> None:
    s.cluster.restart(1)
    assert isinstance(refused(lambda: s.client("").admin.list_topics()), Unauthenticated)
    assert {topic.name for topic in s.root.admin.list_topics()} >= {"orders"}


def test_the_last_administrator_stays(s: Secured) -> None:
    for last in (
        lambda: s.root.access.delete_user("root"),
        lambda: s.root.access.revoke_token("root"),
        lambda: s.root.access.revoke("root", "admin", "cluster"),
    ):
        assert type(refused(last)) is Denied
    s.root.access.create_user("deputies", role=True)
    s.root.access.grant("deputies", "admin", "cluster", role=True)
    deputy = s.user("deputy")
    s.root.access.add_role("deputy", "deputies")
    s.wait_heard()
    assert deputy.access.who_am_i().roles == ("deputies",)
    deputy.access.remove_role("deputy", "deputies")
    assert type(refused(lambda: s.root.access.revoke_token("root"))) is Denied


def test_a_lost_administrator_is_replaced_with_the_secret(s: Secured) -> None:
    mq = s.cluster.client(token=administrator(s.cluster, "rescuer"))
    assert mq.access.who_am_i().grants == ("admin cluster",)
    assert {topic.name for topic in mq.admin.list_topics()} >= {"orders", "secret-plans"}
    mq.access.delete_user("rescuer")
    assert isinstance(refused(lambda: mq.access.who_am_i()), Unauthenticated)


def test_users_roles_and_grants(s: Secured) -> None:
    mq = s.user("ann", "read topic:a.*")
    assert refused(lambda: s.root.access.create_user("ann")).code == AlreadyExists.code
    s.root.access.create_user("readers", role=True)
    s.root.access.grant("readers", "describe", "group:*", role=True)
    assert s.root.access.add_role("ann", "readers") is True
    assert s.root.access.add_role("ann", "readers") is False
    assert s.root.access.grant("ann", "read", "topic:a.*") is False
    answer = s.root.access.test_access("ann", "describe", "group:x")
    assert (answer.allowed, answer.grant, answer.role) == (True, "describe group:*", "readers")
    assert s.root.access.test_access("ann", "write", "topic:a.b").allowed is False
    assert s.root.access.test_access("ann", "describe", "topic:a.b").allowed is True, "reading includes it"
    assert refused(lambda: s.root.access.revoke("ann", "read", "topic:a.b")).code == NotFound.code
    (ann,) = s.root.access.list_users("ann")
    assert (ann.grants, ann.roles, [token.label for token in ann.tokens]) == (
        ("read topic:a.*",), ("readers",), ["of a test"],
    )  # fmt: skip
    me = mq.access.who_am_i()
    assert (me.name, me.proof, set(me.grants)) == ("ann", "token", {"read topic:a.*", "describe group:*"})
    s.root.access.delete_user("readers", role=True)
    s.wait_heard()
    assert mq.access.who_am_i().grants == ("read topic:a.*",)


def test_a_token_ends_by_itself(s: Secured) -> None:
    s.root.access.create_user("guest")
    mq = s.cluster.client(token=s.root.access.create_token("guest", lifetime=3600))
    s.wait_heard()
    assert 3500 < (mq.access.who_am_i().expires_s or 0) <= 3600
    s.cluster.clock.advance(hours=1)
    error = refused(lambda: mq.access.who_am_i())
    assert isinstance(error, Unauthenticated)
    assert "expired" in error.message
    s.wait_checked()


def test_no_secret_shows(s: Secured, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """Not in reprs, errors, logs, metrics, the registry or the audit log."""
    caplog.set_level(logging.DEBUG)
    mq = s.user("quiet")
    token = s.tokens["quiet"]
    assert re.fullmatch(r"tmq_[A-Za-z0-9_-]{43}", token)
    shown = [repr(mq), repr(mq._async.config), str(mq._async.config), repr(SecretText(token)), f"{SecretText(token)}"]
    shown += [repr(vars(mq)), repr(vars(mq._loop_thread))]  # as crash reports print the locals of a frame
    for work in (lambda: mq.send("orders", b"x"), lambda: mq.access.list_users(), lambda: mq.admin.list_topics()):
        try:
            work()
        except TinymqError as error:
            shown += [repr(error), str(error), error.hint, repr(error.detail)]
    with pytest.raises(InvalidConfig) as caught:
        Client(s.cluster.servers, token=token + " and more")
    shown.append(str(caught.value) + caught.value.hint)
    s.cluster.run(s.cluster.brokers[1].audit_log.flush())
    registry = s.cluster.registry(1)
    records = s.cluster.call(lambda: [r for kind in ("user", "role", "access") for r in registry.get_all_records(kind)])
    shown += [repr(record) for record in records]
    shown += [caplog.text, *capfd.readouterr(), audit_path(s).read_text(), repr(s.cluster.brokers[1].config)]
    assert not [text for text in shown if token in text or token[4:20] in text]


def audit_path(s: Secured) -> Path:
    return Path(s.cluster.brokers[1].config.data_dir) / "audit" / "audit.jsonl"


def test_the_audit_log_tells_who_did_what(s: Secured) -> None:
    mq = s.user("noted", "write topic:orders")
    for _ in range(3):
        mq.send("orders", b"x", partition=0)
    for _ in range(3):
        refused(lambda: mq.admin.delete_topic("orders"))
    s.cluster.run(s.cluster.brokers[1].audit_log.flush())
    lines = [json.loads(line) for line in audit_path(s).read_text().splitlines()]
    mine = [(e["call"], e["operation"], e["resource"], e["allowed"]) for e in lines if e["who"] == "noted"]
    assert mine.count(("Broker.Produce", "write", "topic:orders", True)) == 1, "once for a stream and a topic"
    assert mine.count(("Admin.DeleteTopic", "delete", "topic:orders", False)) == 1, "equal ones are counted"
    changes = [e["change"] for e in lines if e["who"] == "root" and "change" in e]
    assert "grant user noted: write topic:orders" in changes
    assert all(e["from"] == "127.0.0.1" and e["time"].endswith("Z") for e in lines)
    assert stat.S_IMODE(audit_path(s).stat().st_mode) == 0o600
    assert stat.S_IMODE(audit_path(s).parent.stat().st_mode) == 0o700


def test_a_token_is_not_sent_where_others_can_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with Client("192.0.2.1:7070", token="tmq_secret", request_timeout_ms=2000) as mq:
        error = refused(lambda: mq.admin.list_topics())
        assert isinstance(error, InvalidConfig)
        assert "token_without_tls" in error.hint
        assert "tmq_" not in str(error)
    monkeypatch.setenv("TINYMQ_TOKEN", "tmq_environment")
    with Client("192.0.2.1:7070", request_timeout_ms=2000) as mq:
        assert isinstance(refused(lambda: mq.admin.list_topics()), InvalidConfig)
