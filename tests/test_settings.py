"""Settings from a file and the environment; each wrong value raises a readable error."""

from __future__ import annotations

import re
from dataclasses import fields
from ipaddress import ip_address
from pathlib import Path

import pytest

import tinymq
from tinymq.app.settings import BrokerSettings, load
from tinymq.base.config import GIB, MIB, BrokerConfig, Limits, Timing, format_address, parse_address, parse_peer
from tinymq.base.errors import InvalidConfig
from tinymq.base.types import PeerAddress

PAGE = Path(__file__).parents[1] / "docs/broker-settings.md"
VOTERS = 'voters = ["1@h:1", "2@h:2", "3@[::1]:3"]'
GOOD = """
broker_id = 2
data_dir = "data"
voters = ["1@h:1", "2@h:2", "3@[::1]:3"]
secret_file = "{secret}"
rack = "r"
[limits]
batch_bytes_max = 1048576
[timing]
heartbeat_s = 0.2
"""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    return path


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    return path


def test_a_file(tmp_path: Path, secret: Path) -> None:
    config = load(write(tmp_path, GOOD.format(secret=secret)))
    assert config.voters == (PeerAddress(1, "h", 1), PeerAddress(2, "h", 2), PeerAddress(3, "::1", 3))
    assert (config.broker_id, config.secret, config.rack) == (2, b"0123456789abcdef", "r")
    assert (config.limits.batch_bytes_max, config.timing.heartbeat_s) == (1048576, 0.2)
    assert config.limits.segment_bytes == Limits().segment_bytes
    assert "0123456789" not in repr(config)


def test_the_environment_wins(tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYMQ_BROKER_ID", "3")
    monkeypatch.setenv("TINYMQ_LIMITS__BATCH_BYTES_MAX", "2097152")
    monkeypatch.setenv("TINYMQ_SERVERS", "h:1")
    monkeypatch.setenv("TINYMQ_CONTEXT", "staging")
    monkeypatch.setenv("TINYMQ_OF_SOMEBODY_ELSE_ALTOGETHER", "x")
    config = load(write(tmp_path, GOOD.format(secret=secret)))
    assert (config.broker_id, config.limits.batch_bytes_max, config.timing.heartbeat_s) == (3, 2097152, 0.2)


def test_a_broker_beyond_the_voters_names_the_brokers_that_it_asks(
    tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joins = GOOD.format(secret=secret).replace(VOTERS, 'join = ["h:1", "[::1]:3"]')
    config = load(write(tmp_path, joins))
    assert (config.voters, config.join) == ((), ("h:1", "[::1]:3"))
    assert load(write(tmp_path, GOOD.format(secret=secret).replace(VOTERS, ""))).join == (), "its data directory knows"
    monkeypatch.setenv("TINYMQ_JOIN", '["other:1"]')
    assert load(write(tmp_path, joins)).join == ("other:1",)


@pytest.mark.parametrize(
    ("instead", "message", "hint"),
    [
        ('voters = ["2@h:2"]\njoin = ["h:1"]', "voters and join exclude one another", ""),
        ('join = ["h:1"]\npeer_listen = "0.0.0.0:7170"', "no broker can dial 0.0.0.0:7170", "peer_advertise"),
        ('join = ["h"]', "'h' is not an address", "host:port"),
        (f"join = {[f'h:{n}' for n in range(1, 18)]}", "more than 16 addresses", ""),
    ],
)
def test_errors_of_joining_are_reported(tmp_path: Path, secret: Path, instead: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidConfig) as wrong:
        load(write(tmp_path, GOOD.format(secret=secret).replace(VOTERS, instead)))
    assert message in wrong.value.message
    assert hint in wrong.value.hint


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        (("broker_id = 2", "brokerid = 2"), "brokerid", "broker_id"),
        (("rack =", "rak ="), "rak", "rack"),
        (("batch_bytes_max", "batch_byte_max"), "limits.batch_byte_max", "batch_bytes_max"),
        (("heartbeat_s", "hartbeat_s"), "timing.hartbeat_s", "heartbeat_s"),
        (("broker_id = 2", ""), "broker_id", ""),
        (("broker_id = 2", 'broker_id = "two"'), "broker_id", ""),
        (("broker_id = 2", "broker_id = 0"), "broker_id", ""),
        (("broker_id = 2", "broker_id = 9"), "not among the voters", "voters"),
        (("2@h:2", "h:2"), "h:2", "id@host:port"),
        (("2@h:2", "1@h:2"), "two voters", ""),
        (('"2@h:2", ', ""), "1, 3 or 5", ""),
        (("1@h:1", "1@h:70000"), "h:70000", "host:port"),
        (("1048576", "0"), "batch_bytes_max", ""),
        (("1048576", "104857600"), "batch_bytes_max", ""),
        (("0.2", "5.0"), "gone_after_s", ""),
        (("rack", "rack rack"), "not TOML", ""),
    ],
)
def test_errors_are_reported(tmp_path: Path, secret: Path, change: tuple[str, str], message: str, hint: str) -> None:
    with pytest.raises(InvalidConfig) as wrong:
        load(write(tmp_path, GOOD.format(secret=secret).replace(*change)))
    assert message in wrong.value.message
    assert hint in wrong.value.hint


def test_a_misspelt_variable_names_the_nearest(tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYMQ_LIMITS__BATCH_BYTE_MAX", "5")
    with pytest.raises(InvalidConfig) as wrong:
        load(write(tmp_path, GOOD.format(secret=secret)))
    assert "TINYMQ_LIMITS__BATCH_BYTES_MAX" in wrong.value.hint


def test_secret_files(tmp_path: Path, secret: Path) -> None:
    text = GOOD.format(secret=secret)
    secret.chmod(0o640)
    with pytest.raises(InvalidConfig) as open_to_all:
        load(write(tmp_path, text))
    assert "chmod 600" in open_to_all.value.hint
    secret.chmod(0o600)
    secret.write_text("short")
    with pytest.raises(InvalidConfig, match="16 bytes"):
        load(write(tmp_path, text))
    secret.unlink()
    with pytest.raises(InvalidConfig, match="secret"):
        load(write(tmp_path, text))
    with pytest.raises(InvalidConfig, match="nothing-here"):
        load(tmp_path / "nothing-here")


def test_addresses() -> None:
    assert parse_address("h:1") == ("h", 1)
    assert parse_address("[::1]:7") == ("::1", 7)
    assert format_address("::1", 7) == "[::1]:7"
    assert str(parse_peer("4@h:9")) == "4@h:9"
    for bad in ("", "h", "h:", ":1", "h:x", "h:-1", "h:65536", "h:١"):
        with pytest.raises(InvalidConfig):
            parse_address(bad)


def test_defaults_hold_together() -> None:
    limits, timing = Limits(), Timing()
    assert limits.grpc_message_bytes_max > limits.fetch_bytes_max
    config = BrokerConfig(1, "d", (PeerAddress(1, "h", 1),), b"x" * 16, limits=limits, timing=timing)
    assert config.listen.startswith("127.0.0.1")
    assert config.peer_listen.startswith("127.0.0.1")


@pytest.mark.parametrize("name", ["listen", "stream_listen", "peer_listen", "metrics_listen"])
def test_the_default_listen_address_is_loopback(name: str, tmp_path: Path, secret: Path) -> None:
    host, _ = parse_address(getattr(load(write(tmp_path, GOOD.format(secret=secret))), name))
    assert ip_address(host).is_loopback


def test_metrics_are_on_for_a_process_and_off_for_a_library(tmp_path: Path, secret: Path) -> None:
    good = GOOD.format(secret=secret)
    assert load(write(tmp_path, good)).metrics_listen == "127.0.0.1:9470"
    assert load(write(tmp_path, 'metrics_listen = ""\n' + good)).metrics_listen == ""
    assert BrokerConfig(1, "d", (PeerAddress(1, "h", 1),), b"x" * 16).metrics_listen == ""
    with pytest.raises(InvalidConfig, match="9470x"):
        load(write(tmp_path, 'metrics_listen = "127.0.0.1:9470x"\n' + good))


@pytest.mark.parametrize("section", [Limits, Timing])
def test_every_bound_and_delay_is_used(section: type[Limits] | type[Timing]) -> None:
    """A setting that no code reads would silently have no effect."""
    root = Path(tinymq.__file__).parent
    code = "".join(path.read_text() for path in root.rglob("*.py") if path.name != "config.py")
    assert not [f.name for f in fields(section) if not re.search(rf"\.{f.name}\b", code)]


def shown(name: str, value: object) -> str:
    """A default as the page of settings shows it."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f"`{value}`" if value else "empty"
    if isinstance(value, list):
        return "none"
    if not isinstance(value, int):
        return f"{value:g}"
    unit, text = (GIB, "GiB") if value >= GIB else (MIB, "MiB")
    return f"{value // unit} {text}" if "bytes" in name and value and not value % unit else f"{value:,}"


def test_the_page_of_settings_has_each_with_its_default() -> None:
    """People who have only the package cannot look into config.py."""
    keys = [
        (name, "required" if key.is_required() else shown(name, key.default))
        for name, key in BrokerSettings.model_fields.items()
        if name not in ("limits", "timing", "jwt")
    ]
    sections = [(f.name, shown(f.name, f.default)) for section in (Limits, Timing) for f in fields(section)]
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", PAGE.read_text(), re.MULTILINE)
    by_name = dict(rows)
    assert len(by_name) == len(rows)
    assert by_name == dict(keys + sections)
