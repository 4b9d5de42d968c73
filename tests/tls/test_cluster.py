"""A cluster that requires TLS, over real sockets: who gets in, what the refusals say, and new certificates."""

from __future__ import annotations

import asyncio
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tls.authorities import authority, long_ago
from tinymq import Client
from tinymq.base.errors import BrokerUnreachable, Denied, InvalidConfig, TinymqError, Unauthenticated
from tinymq.dev.certificates import Authority, write_issued
from tinymq.net.client_tls import ClientTls
from tinymq.net.tls_files import CA, Paths, TlsFiles
from tinymq.rpc.operator_calls.first_administrator import make_administrator
from tinymq.testing import Cluster
from tinymq.testing.cluster import SECRET

FAST: dict[str, Any] = {"connect_timeout_ms": 300, "request_timeout_ms": 10_000}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, security="required", metrics=True) as made:
        yield made


def refused(servers: str, **settings: Any) -> TinymqError:
    """The error of a client that may not get in."""
    with Client(servers, **{**FAST, **settings}) as mq, pytest.raises(TinymqError) as error:
        mq.admin.list_topics()
    return error.value


def ours(cluster: Cluster) -> str:
    return str(cluster.certificates.authority)


def test_records_pass_both_ways(cluster: Cluster) -> None:
    """By both ways of sending, one at a time and in batches, and from leaders and followers."""
    with cluster.client() as mq:
        mq.admin.create_topic("records", 3, replication_factor=3)
        sent = [b"%d" % number for number in range(300)]
        for value in sent[:100]:
            mq.send("records", value)
        with mq.producer(compression="none") as producer:
            for value in sent[100:]:
                producer.send("records", value)
        for replica in ("leader", "follower"):
            reader = mq.reader("records", replica=replica)  # type: ignore[arg-type]
            assert sorted(int(next(reader).value or b"") for _ in sent) == list(range(300))
            reader.close()


def test_large_records_pass(cluster: Cluster) -> None:
    """Fetches of more than a stream's buffers, which come from files where there is no TLS."""
    large = bytes(range(256)) * 12_000
    with cluster.client() as mq:
        mq.admin.create_topic("large", 1, replication_factor=3)
        for _ in range(6):
            mq.send("large", large)
        with mq.reader("large", fetch_bytes_max=16 << 20) as reader:
            assert all(next(reader).value == large for _ in range(6))


def test_a_client_without_tls_gets_no_word(cluster: Cluster) -> None:
    error = refused(cluster.addresses[0])
    assert isinstance(error, BrokerUnreachable)
    assert "requires TLS (connect to tinymq+tls://)" in error.message


def test_a_client_of_a_plain_cluster_says_so() -> None:
    with Cluster(nodes=1) as plain, Cluster(nodes=1, security="required") as secure:
        error = refused(f"tinymq+tls://{plain.addresses[0]}", tls_ca=ours(secure))
        assert "it does not speak TLS" in error.message


def test_an_unknown_authority_is_named(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / CA).write_bytes(authority("theirs").pem)
    error = refused(cluster.servers, tls_dir=tmp_path)
    assert "'tinymq test' signed it, which ca.crt does not have: it has 'theirs' (" in error.message


def test_another_authority_of_the_same_name_is_told_apart(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / CA).write_bytes(authority("tinymq test").pem)
    error = refused(cluster.servers, tls_dir=tmp_path)
    assert "it has 'tinymq test', of that name but with another key" in error.message


def test_both_names_are_named(cluster: Cluster) -> None:
    error = refused(cluster.servers, tls_ca=ours(cluster), tls_server_name="db7.example")
    assert "its certificate is for localhost, 127.0.0.1" in error.message
    assert error.message.endswith("not for db7.example")


def test_the_date_of_an_expired_certificate_is_named(tmp_path: Path) -> None:
    with Cluster(nodes=1, security="required") as cluster:
        mine = Authority.read(cluster.certificates.authority.parent)
        write_issued(cluster.certificates.of_broker(1), mine.pem, mine.broker(1, days=1, now=long_ago))
        error = refused(cluster.servers, tls_ca=ours(cluster))
        expired = long_ago().date()
        assert "its certificate has expired on 2" in error.message
        assert str(expired.year) in error.message


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "TLS needs the certificate of the brokers' authority"),
        ({"tls_ca": "/nowhere/ca.crt"}, "cannot read /nowhere/ca.crt"),
        ({"tls_ca": 7}, "tls_ca=7"),
        ({"tls": False}, "some servers with TLS, and some without"),
    ],
)
def test_what_is_missing_is_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said), Client("tinymq+tls://127.0.0.1:1", **settings) as mq:
        mq.admin.list_topics()


def test_tls_that_is_not_used_is_an_error() -> None:
    with pytest.raises(InvalidConfig, match="TLS is configured, and not used"):
        Client("127.0.0.1:1", tls_ca="ca.crt")


def test_the_environment_names_the_authority(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYMQ_TLS_CA", ours(cluster))
    monkeypatch.setenv("TINYMQ_SERVERS", cluster.servers)
    with Client() as mq:
        assert mq.admin.list_topics() is not None


def test_metrics_on_loopback_need_no_tls(cluster: Cluster) -> None:
    with urllib.request.urlopen(f"http://{cluster.metrics_address(1)}/status") as answer:
        assert answer.status == 200


def test_clients_are_known_by_their_certificates(tmp_path: Path) -> None:
    """With `client_certificates`, a client without one gets nothing, and one with a certificate is its user."""
    with Cluster(nodes=3, security="required", client_certificates=True) as cluster:
        mine = Authority.read(cluster.certificates.authority.parent)
        for name in ("root", "alice"):
            write_issued(tmp_path / name, mine.pem, mine.user(name))
        write_issued(tmp_path / "mallory", mine.pem, authority("theirs").user("root"))
        tls = ClientTls(TlsFiles(Paths.of(tmp_path / "root")))
        asyncio.run(make_administrator(cluster.addresses, SECRET, "root", 20.0, tls))
        with cluster.client(tls_dir=tmp_path / "root") as root, cluster.client(tls_dir=tmp_path / "alice") as alice:
            root.admin.create_topic("orders", 1)
            root.access.switch(True)
            root.access.create_user("alice")
            root.access.grant("alice", "read", "topic:orders")
            assert root.access.who_am_i().name == "root"
            cluster.wait_until(lambda: all(app.gate.on and not app.gate.deaf for app in cluster.brokers.values()))
            assert alice.access.who_am_i().name == "alice"
            with pytest.raises(Denied, match="alice"):
                alice.send("orders", b"x")
            with pytest.raises(Denied, match="alice"):
                alice.producer().send("orders", b"x").result()
            root.send("orders", b"x")
            with alice.reader("orders") as reader:
                assert next(reader).value == b"x"
                root.access.delete_user("alice")  # a certificate alone grants nothing, and the reader is open
                with pytest.raises(Denied, match="alice"):
                    next(reader)
        assert isinstance(refused(cluster.servers, tls_ca=ours(cluster)), BrokerUnreachable)
        assert isinstance(refused(cluster.servers, tls_dir=tmp_path / "mallory"), BrokerUnreachable)


def test_a_token_comes_from_other_machines_with_tls_only() -> None:
    """Loopback is everybody's own machine, so the rule is tried where it is decided."""
    from tinymq.access.caller import Credential

    with Cluster(nodes=1, security="required") as cluster:
        gate = cluster.brokers[1].gate
        plain, encrypted = (Credential("10.1.2.3", token="tmq_x", encrypted=each) for each in (False, True))
        with pytest.raises(Unauthenticated, match="that others can read"):
            cluster.call(lambda: gate.identify(plain))
        with pytest.raises(Unauthenticated, match="unknown, or revoked"):
            cluster.call(lambda: gate.identify(encrypted))


def serial(cluster: Cluster, broker_id: int, tls_ca: Path) -> str:
    """The serial number of the certificate that a broker shows now."""
    host, _, port = cluster.address(broker_id).partition(":")
    context = ssl.create_default_context(cafile=str(tls_ca))
    context.set_alpn_protocols(["h2"])
    import socket

    with socket.create_connection((host, int(port))) as sock, context.wrap_socket(sock, server_hostname=host) as tls:
        found = tls.getpeercert()
        assert found is not None
        return str(found["serialNumber"])


def test_certificates_and_authorities_change_without_a_restart(tmp_path: Path) -> None:
    """In the order that keeps everybody connected: trust the new authority, use its certificates, drop the old one."""
    with Cluster(nodes=3, security="required") as cluster:
        old, new = Authority.read(cluster.certificates.authority.parent), Authority.make("the next one")
        both = tmp_path / "client"
        both.mkdir()
        (both / CA).write_bytes(old.pem)
        with cluster.client(tls_dir=both) as mq:
            mq.admin.create_topic("rotated", 3, replication_factor=3)
            mq.send("rotated", b"0")
            before = serial(cluster, 1, both / CA)
            steps = [(old.pem + new.pem, old), (old.pem + new.pem, new), (new.pem, new)]
            for step, (trusted, signer) in enumerate(steps):
                (both / CA).write_bytes(trusted)
                for broker_id in cluster.brokers:
                    write_issued(cluster.certificates.of_broker(broker_id), trusted, signer.broker(broker_id))
                for broker_id in cluster.brokers:  # so that it connects with the new certificate
                    cluster.call(lambda broker_id=broker_id: break_peers(cluster, broker_id))  # type: ignore[misc]
                mq.send("rotated", b"%d" % (step + 1))
                with cluster.client(tls_dir=both) as another:
                    another.send("rotated", b"another")
            assert serial(cluster, 1, both / CA) != before
            with mq.reader("rotated") as reader:
                assert len([next(reader) for _ in range(7)]) == 7
        left = refused(cluster.servers, tls_ca=str(cluster.certificates.authority))
        assert "which ca.crt does not have" in left.message


def break_peers(cluster: Cluster, broker_id: int) -> None:
    """Close what a broker has opened to others. It dials again, with the certificates of that moment."""
    from tinymq.raft.net.transport import Channel

    transport = cluster.brokers[broker_id]._transport
    assert transport is not None
    for other in cluster.brokers:
        for channel in Channel:
            transport.reset(other, channel)
