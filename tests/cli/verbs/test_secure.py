"""`tinymq dev up --secure` and `tinymq cert`: TLS and users without a line of configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinymq import Client
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.client.common import contexts
from tinymq.dev import dev_cluster, dev_directory

Out = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in (
        "TINYMQ_SERVERS",
        "TINYMQ_CONTEXT",
        "TINYMQ_TOKEN",
        "TINYMQ_TOKEN_FILE",
        "TINYMQ_TLS_CA",
        "TINYMQ_TLS_DIR",
    ):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    local = tmp_path / dev_directory.DEFAULT  # absolute: a test that fails may be elsewhere
    if (local / "cluster.json").exists():
        dev_cluster.down(local, purge=False)


def test_a_secure_cluster_needs_no_configuration(here: Path, capfd: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["dev", "up", "-n", "1", "--port", "0", "--secure"]) == Exit.OK
    folder = dev_directory.load(dev_directory.DEFAULT)
    assert folder.servers.startswith("tinymq+tls://")
    made = [folder.path, *folder.path.rglob("*")]
    assert [path for path in made if path.stat().st_mode & 0o077] == [], "only its owner can read the files"
    assert run(["topic", "create", "t"]) == Exit.OK
    capfd.readouterr()
    assert run(["whoami"]) == Exit.OK
    assert capfd.readouterr().out.startswith("admin (by token)")
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")  # the context has servers, authority and token
    assert run(["topic", "list", "-o", "json"]) == Exit.OK
    assert [each["name"] for each in json.loads(capfd.readouterr().out)["topics"]] == ["t"]
    with Client(context="dev") as mq:  # so do programs that name it
        assert mq.send("t", b"first").offset == 0
    plain = folder.servers.removeprefix("tinymq+tls://")
    assert run(["topic", "list", "-s", plain, "--timeout", "3"]) != Exit.OK
    assert "requires TLS" in capfd.readouterr().err
    assert run(["topic", "list", "-s", folder.servers, "--timeout", "3"]) == Exit.OK, "the context knows these servers"
    contexts.save(contexts.Contexts())
    assert run(["topic", "list", "-s", folder.servers]) != Exit.OK
    assert "TLS needs the certificate of the brokers' authority" in capfd.readouterr().err
    ca = ["--tls-ca", str(here / folder.certificates / "ca" / "ca.crt")]
    assert run(["topic", "list", "-s", folder.servers, *ca, "--timeout", "3"]) != Exit.OK
    assert "shows no token" in capfd.readouterr().err
    token = ["--token-file", str(here / folder.token_file)]
    assert run(["topic", "list", "-s", folder.servers, *ca, *token]) == Exit.OK
    monkeypatch.chdir(here)
    assert run(["dev", "down"]) == Exit.OK
    capfd.readouterr()
    assert run(["dev", "up"]) == Exit.OK, "it stays secure"
    assert run(["topic", "list", "-o", "json"]) == Exit.OK
    assert '"t"' in capfd.readouterr().out


def test_a_plain_cluster_does_not_become_a_secure_one_in_silence(here: Path, capfd: Out) -> None:
    dev_directory.create(dev_directory.DEFAULT, 1)
    assert run(["dev", "up", "--secure"]) == Exit.USAGE
    said = capfd.readouterr().err
    assert "was made without TLS" in said
    assert "dev down --purge" in said


def test_certificates_by_hand(here: Path, capfd: Out) -> None:
    assert run(["cert", "broker", "1"]) == Exit.NOT_FOUND
    assert "make one: tinymq cert ca" in capfd.readouterr().err
    assert run(["cert", "ca", "--name", "example"]) == Exit.OK
    assert run(["cert", "broker", "1", "--host", "db1.example", "--host", "10.0.0.1", "-o", "json"]) == Exit.OK
    assert json.loads(capfd.readouterr().out) == {"directory": "certificates/broker-1"}
    assert run(["cert", "user", "alice"]) == Exit.OK
    files = {str(path.relative_to(here / "certificates")) for path in here.rglob("*.*") if path.is_file()}
    each = {f"{who}/{file}" for who in ("broker-1", "alice") for file in ("ca.crt", "tls.crt", "tls.key")}
    assert files == {"ca/ca.crt", "ca/ca.key"} | each
    before = (here / "certificates/ca/ca.key").read_bytes()
    assert run(["cert", "ca"]) == Exit.FAILED, "a new authority would make all certificates worthless"
    assert (here / "certificates/ca/ca.key").read_bytes() == before
    said = capfd.readouterr()
    assert "PRIVATE KEY" not in said.out + said.err


@pytest.mark.parametrize(
    "words", [["user", "ca"], ["user", "broker-7"], ["user", "../x"], ["broker", "0"], ["broker", "1", "--host", "a b"]]
)
def test_names_that_no_certificate_can_have(here: Path, capfd: Out, words: list[str]) -> None:
    assert run(["cert", "ca"]) == Exit.OK
    before = {path for path in here.rglob("*") if path.is_file()}
    assert run(["cert", *words]) == Exit.USAGE
    assert {path for path in here.rglob("*") if path.is_file()} == before
