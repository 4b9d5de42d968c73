"""Text that people write: configuration files, environments, addresses, start positions. A value, or InvalidConfig."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.driver import allocating
from tinymq.app.settings import BrokerSettings, LimitsSection, TimingSection, load
from tinymq.base.config import BrokerConfig, Limits, Timing, format_address, parse_address, parse_peer
from tinymq.base.errors import InvalidConfig, InvalidName, InvalidRequest
from tinymq.base.types import Offset, check_topic_name
from tinymq.cli.common.offsets import Last, parse_start
from tinymq.cli.common.servers import ServerOptions
from tinymq.client.common.servers import parse_servers

QUICK = settings(max_examples=60, derandomize=True, database=None, deadline=None)

LOAD_BYTES_MAX = 64 << 20  # tomllib keeps every prefix of a dotted key: 37 MB for one of 3,000 parts

SECRET = "0123456789abcdef"
GOOD: dict[str, Any] = {
    "broker_id": 2,
    "data_dir": "data",
    "voters": ["1@h:1", "2@h:2", "3@[::1]:3"],
    "secret_file": "",  # filled in
    "rack": "r",
}
DIGITS = st.sampled_from(
    ["0", "1", "7070", "65535", "65536", "-1", "١", "1" * 5000, "9" * 30, "1_0", " 1", "0x1", "1e3"]
)
HOSTS = st.sampled_from(["h", "127.0.0.1", "[::1]", "::1", "[", "]", "[]", "é", "a" * 300, "a\0b", "a b", ".", "", "@"])
ADDRESSES = st.builds(
    lambda host, colon, port: host + colon + port, HOSTS, st.sampled_from([":", "", "::", "@"]), DIGITS
)
PEERS = st.builds(
    lambda number, at, address: number + at + address, DIGITS, st.sampled_from(["@", "", "@@"]), ADDRESSES
)
WORDS = st.one_of(st.text(max_size=20), ADDRESSES, PEERS, DIGITS)
NUMBERS = st.one_of(
    st.integers(), st.sampled_from([0, -1, 1 << 31, 1 << 32, 1 << 63, 1 << 64, 10**400]),
    st.floats(), st.sampled_from([0.1, 1e9, 1e300, math.inf, -math.inf, math.nan]),
)  # fmt: skip
SCALARS = st.one_of(NUMBERS, WORDS, st.booleans())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ODD_KEYS = [
    "_env_file",
    "_secrets_dir",
    "_cli_parse_args",
    "_case_sensitive",
    "__pydantic_self__",
    "self",
    "",
    "a.b",
    "é",
]
SECTIONS = {"limits": list(LimitsSection.model_fields), "timing": list(TimingSection.model_fields)}
KEYS = [*BrokerSettings.model_fields, *ODD_KEYS]
VARIABLES = [
    "TINYMQ_" + name.upper()
    for name in [*KEYS[: -len(ODD_KEYS)], *(f"{section}__{key}" for section, keys in SECTIONS.items() for key in keys)]
]


def section(name: str) -> st.SearchStrategy[Any]:
    keys = st.sampled_from([*SECTIONS[name], "odd"])
    return st.one_of(st.dictionaries(keys, st.one_of(NUMBERS, SCALARS), max_size=3), VALUES)


def toml(value: object) -> str:
    """`value` as TOML; numbers unchanged, in range or not."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value).replace("\x7f", "\\u007f") if isinstance(value, str) else str(value)


def check_loaded(text: str, environment: dict[str, str]) -> BrokerConfig | None:
    """Load the configuration, and check accepted values against the assumptions of the broker."""
    with tempfile.TemporaryDirectory() as folder:
        secret, path = Path(folder) / "secret", Path(folder) / "broker.toml"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        path.write_text(text.replace("SECRET_FILE", str(secret)), errors="surrogatepass")
        with pytest.MonkeyPatch.context() as variables:
            for name, value in environment.items():
                variables.setenv(name, value)
            with allocating(LOAD_BYTES_MAX, f"a file of {len(text)} characters, and {environment}"):
                try:
                    config = load(path)
                except InvalidConfig:
                    return None
    for timing in fields(Timing):
        assert 0 < int(getattr(config.timing, timing.name) * 1000) + 1 < 1 << 32, timing.name  # goes as uint32 ms
    for limit in fields(Limits):
        least = 0 if limit.name.endswith("_per_s") else 1  # 0: no such bound
        assert least <= getattr(config.limits, limit.name) < 1 << 63, limit.name
    assert 0 < config.limits.grpc_message_bytes_max < 1 << 31, "what gRPC takes"
    assert config.limits.peer_frame_bytes_max < 1 << 32, "the largest number in a frame's prefix"
    for voter in config.voters:
        assert 0 < voter.broker_id < 1 << 32
    assert "\0" not in config.data_dir
    return config


@given(
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3),
    st.fixed_dictionaries({}, optional={name: section(name) for name in SECTIONS}),
    st.sampled_from(KEYS),
)
@QUICK
def test_a_configuration_file(changed: dict[str, Any], sections: dict[str, Any], dropped: str) -> None:
    values = {**GOOD, "secret_file": "SECRET_FILE", **changed, **sections}
    if len(changed) % 3 == 2:
        values.pop(dropped, None)
    check_loaded("\n".join(f"{json.dumps(key)} = {toml(value)}" for key, value in values.items()), {})


@given(
    st.text(max_size=60),
    st.integers(0, 200),
    st.sampled_from(["", "[" * 5000, "a = " + "[" * 3000, "a." * 3000 + "b = 1"]),
)
@QUICK
def test_a_file_that_is_hardly_toml(text: str, at: int, deep: str) -> None:
    good = "\n".join(f"{key} = {toml(value)}" for key, value in {**GOOD, "secret_file": "SECRET_FILE"}.items())
    check_loaded(good[:at] + text + good[at:] + "\n" + deep, {})


@given(
    st.dictionaries(
        st.sampled_from(VARIABLES),
        st.one_of(WORDS, VALUES.map(lambda value: json.dumps(value, default=str))).map(
            lambda text: text.replace("\0", "")
        ),
        min_size=1,
        max_size=3,
    )
)
@QUICK
def test_an_environment(variables: dict[str, str]) -> None:
    good = "\n".join(f"{key} = {toml(value)}" for key, value in {**GOOD, "secret_file": "SECRET_FILE"}.items())
    check_loaded(good, {k: v.replace("\0", "").encode(errors="ignore").decode() for k, v in variables.items()})


@given(st.one_of(st.text(max_size=40), ADDRESSES, PEERS))
@QUICK
def test_addresses(text: str) -> None:
    try:
        host, port = parse_address(text)
    except InvalidConfig:
        pass
    else:
        assert 0 <= port <= 65535
        assert parse_address(format_address(host, port)) == (host, port)
    try:
        peer = parse_peer(text)
    except InvalidConfig:
        pass
    else:
        assert parse_peer(f"{peer.broker_id}@{format_address(peer.host, peer.port)}") == peer
    for parse in (parse_servers, lambda text: ServerOptions(servers=text).addresses()):
        try:
            parse(text)  # type: ignore[operator]
        except InvalidConfig:
            continue


STARTS = st.one_of(
    st.text(max_size=30), DIGITS, DIGITS.map("-".__add__), st.one_of(DIGITS, st.text(max_size=30)).map("@".__add__),
    st.datetimes().map(lambda time: f"@{time.isoformat()}"),
    st.tuples(st.datetimes().map(lambda time: f"@{time.isoformat()}"), st.sampled_from(["Z", "+23:59"])).map("".join),
    st.floats().map(lambda number: f"@{number}"),
    st.sampled_from(["@nan", "@inf", "@-inf", "@1e400", "@-62135596800", "@253402300800", "-", "--1", "end", "start"]),
)  # fmt: skip


@given(STARTS)
@QUICK
def test_places_to_start(text: str) -> None:
    try:
        start = parse_start(text)
    except InvalidRequest:
        return
    match start:
        case datetime():
            assert start.tzinfo is not None
            since = start - datetime(1970, 1, 1, tzinfo=UTC)
            assert -(1 << 63) <= since.total_seconds() * 1e6 < 1 << 63
        case Offset(value) | Last(value):
            assert 0 <= value < 1 << 63
        case _:
            assert start in ("earliest", "latest")


@given(st.text(max_size=300) | st.text("aZ09._-", min_size=1, max_size=260))
@QUICK
def test_topic_names(name: str) -> None:
    try:
        check_topic_name(name)
    except InvalidName:
        return
    assert name.isascii()
    assert 1 <= len(name) <= 249
    assert "/" not in name
    assert name not in (".", "..")
