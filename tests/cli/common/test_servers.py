"""The brokers that a command talks to."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tinymq.base.errors import InvalidConfig, InvalidRequest, NotFound
from tinymq.cli.common import stopwatch
from tinymq.cli.common.servers import ServerOptions
from tinymq.client.common import contexts
from tinymq.client.common.contexts import Context, Contexts
from tinymq.dev import dev_directory


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TINYMQ_SERVERS", "TINYMQ_CONTEXT"):
        monkeypatch.delenv(name, raising=False)


def test_the_default_is_the_local_cluster() -> None:
    with pytest.raises(NotFound) as nobody:
        ServerOptions().addresses()
    assert "tinymq dev up" in nobody.value.hint
    folder = dev_directory.create(dev_directory.DEFAULT, 3)
    assert ServerOptions().addresses() == [broker.address for broker in folder.brokers]
    for text in ("h:1,h:2", "tinymq://h:1,h:2", "tinymq+tls://h:1, h:2"):
        assert ServerOptions(text).addresses() == ["h:1", "h:2"]


def test_an_option_comes_before_the_environment_and_addresses_before_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts.save(Contexts("used", {"used": Context("u:1"), "named": Context("n:1", token="its token")}))
    assert ServerOptions().named() == Context("u:1")
    assert ServerOptions(context="named").named() == Context("n:1", token="its token")
    assert ServerOptions("s:1", context="named").named() == Context("s:1")
    monkeypatch.setenv("TINYMQ_SERVERS", "e:1")  # the command line reads both variables as if they were options
    assert ServerOptions("e:1", context="named").addresses() == ["n:1"]
    monkeypatch.setenv("TINYMQ_CONTEXT", "named")
    assert ServerOptions("e:1", context="named").addresses() == ["e:1"]
    assert ServerOptions("s:1", context="named").addresses() == ["s:1"]
    with pytest.raises(NotFound, match="did you mean 'named'"):
        ServerOptions(context="name").named()


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, 1e9])
def test_a_timeout_is_above_zero_and_bounded(seconds: float) -> None:
    with pytest.raises(InvalidRequest, match="--timeout"):
        ServerOptions("h:1", seconds)


@pytest.mark.parametrize("servers", ["http://h:1", "h:1,grpc://h:2", "h:1,h"])
def test_a_malformed_address_is_refused_at_once(servers: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        ServerOptions(servers).addresses()
    assert "host:port" in raised.value.hint


def test_a_slow_start_counts_to_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command ends by its time-out, not by its time-out after its modules are loaded."""
    now_s = 100.0
    monkeypatch.setattr(stopwatch.time, "monotonic", lambda: now_s)
    servers = ServerOptions("h:1", timeout=8)

    def left_ms() -> float:
        with servers.connect() as mq:
            return mq._async.config.request_timeout_ms

    with stopwatch.command():
        now_s += 2.5
        assert left_ms() == 5_500
        now_s += 60
        assert left_ms() == 4_000, "a call has half of it in any case"
    assert left_ms() == 8_000, "a program that is no command"
