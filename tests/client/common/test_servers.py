"""The cluster that a program names: by addresses, by the name of a context, or by the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tinymq import AsyncClient, Client, ClientConfig, TinymqError
from tinymq.base.errors import CorruptData, InvalidConfig, NotFound
from tinymq.client.common import contexts
from tinymq.client.common.contexts import Context, Contexts
from tinymq.client.common.servers import find_cluster

PLAIN = Context("a:1,b:2", token="tmq_context")
SECURE = Context("tinymq+tls://c:3", token="tmq_context", tls_ca="/there/ca.crt", tls_dir="/there")


@pytest.fixture(autouse=True)
def _contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two contexts, of which commands use `staging`, and an environment that names nothing."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("SERVERS", "CONTEXT", "TOKEN", "TLS_CA"):
        monkeypatch.delenv(f"TINYMQ_{name}", raising=False)
    contexts.save(Contexts("staging", {"staging": PLAIN, "secure": SECURE}))


def config(client: Client | AsyncClient) -> ClientConfig:
    return client._config if isinstance(client, Client) else client._core.config


def token(client: Client | AsyncClient) -> str:
    kept = config(client).token
    return kept if isinstance(kept, str) else kept.reveal()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_context_brings_addresses_token_and_certificates(kind: type[Client] | type[AsyncClient]) -> None:
    plain, secure = kind(context="staging"), kind(context="secure")
    assert (plain.servers, token(plain), config(plain).tls) == (("a:1", "b:2"), "tmq_context", False)
    assert (secure.servers, token(secure), config(secure).tls) == (("c:3",), "tmq_context", True)
    assert (config(secure).tls_ca, config(secure).tls_dir) == ("/there/ca.crt", "/there")


def test_a_terminal_does_not_decide_where_a_program_writes() -> None:
    """The context that commands use is named in the error, and not used."""
    with pytest.raises(InvalidConfig, match=r"pass Client\('127.0.0.1:7070'\) or Client\(context='staging'\)"):
        Client()


@pytest.mark.parametrize(
    ("arguments", "environment", "found"),
    [
        ({}, {"SERVERS": "e:1"}, ("e:1",)),
        ({}, {"CONTEXT": "staging"}, ("a:1", "b:2")),
        ({}, {"SERVERS": "e:1", "CONTEXT": "staging"}, ("e:1",)),
        ({"context": "secure"}, {"SERVERS": "e:1", "CONTEXT": "staging"}, ("c:3",)),
        ({"servers": "s:1"}, {"SERVERS": "e:1", "CONTEXT": "staging"}, ("s:1",)),
    ],
)
def test_arguments_come_before_the_environment_and_addresses_before_names(
    arguments: dict[str, Any], environment: dict[str, str], found: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in environment.items():
        monkeypatch.setenv(f"TINYMQ_{name}", text)
    assert Client(**arguments).servers == found


def test_settings_and_environment_overrule_what_a_context_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert token(Client(context="staging", token="mine")) == "mine"
    secure = Client(context="secure", tls_dir="/mine")
    assert (config(secure).tls_ca, config(secure).tls_dir) == ("", "/mine")
    monkeypatch.setenv("TINYMQ_TOKEN", "tmq_environment")
    monkeypatch.setenv("TINYMQ_TLS_CA", "/environment/ca.crt")
    assert token(Client(context="staging")) == "tmq_environment"
    assert config(Client(context="secure")).tls_ca == "/environment/ca.crt"


def test_addresses_get_nothing_of_a_context() -> None:
    assert not find_cluster("a:1,b:2", None, {})[1].token


@pytest.mark.parametrize(
    ("arguments", "error", "why"),
    [
        ({"servers": "a:1", "context": "staging"}, InvalidConfig, "name the cluster by one of them"),
        ({"context": "stagin"}, NotFound, "did you mean 'staging'"),
        ({"context": ""}, NotFound, "no context ''"),
    ],
)
def test_a_cluster_that_is_not_named_well_is_refused(
    arguments: dict[str, Any], error: type[TinymqError], why: str
) -> None:
    with pytest.raises(error, match=why):
        Client(**arguments)


def test_a_damaged_file_is_said_to_those_who_need_it() -> None:
    contexts.path().write_text("{")
    with pytest.raises(CorruptData, match="damaged"):
        Client(context="staging")
    with pytest.raises(InvalidConfig, match=r"pass Client\('127.0.0.1:7070'\), or set"):
        Client()
    assert Client("a:1").servers == ("a:1",)
