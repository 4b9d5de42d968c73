"""Reads a broker's configuration from a TOML file and from the environment, which takes precedence.

    broker_id = 1
    data_dir = "/var/lib/tinymq"
    listen = "127.0.0.1:7070"
    stream_listen = "127.0.0.1:7370"
    peer_listen = "127.0.0.1:7170"
    metrics_listen = "127.0.0.1:9470"
    voters = ["1@127.0.0.1:7170", "2@127.0.0.1:7171", "3@127.0.0.1:7172"]  # else join = ["127.0.0.1:7170"]
    secret_file = "/etc/tinymq/secret"
    [limits]
    batch_bytes_max = 8388608
    [timing]
    heartbeat_s = 0.1

In the environment the same names are upper case after TINYMQ_, with two underscores after a section:
TINYMQ_BROKER_ID=1, TINYMQ_LIMITS__BATCH_BYTES_MAX=8388608. An unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import os
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from tinymq.base import extras
from tinymq.base.config import BrokerConfig, Limits, Timing, parse_peer
from tinymq.base.errors import InvalidConfig
from tinymq.base.identity.issuer_config import IssuerConfig

with extras.required("tinymq.app.settings"):
    from pydantic import BaseModel, ConfigDict, ValidationError, create_model
    from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

PREFIX = "TINYMQ_"
_AS_JSON = """in the environment, lists and sections are JSON: TINYMQ_VOTERS='["1@127.0.0.1:7170"]'"""
NOT_OURS = frozenset(
    {"TINYMQ_CONTEXT", "TINYMQ_SERVERS", "TINYMQ_TOKEN", "TINYMQ_TOKEN_FILE", "TINYMQ_TLS_CA"}
)  # read by clients, not by a broker


def _section(name: str, values: type[Limits] | type[Timing] | type[IssuerConfig]) -> type[BaseModel]:
    """A model with the fields and defaults of a frozen dataclass, so that they are declared once."""
    default = values()
    declared: dict[str, Any] = {
        f.name: (type(getattr(default, f.name)), getattr(default, f.name)) for f in fields(values)
    }
    return create_model(name, __config__=ConfigDict(extra="forbid"), **declared)


LimitsSection = _section("LimitsSection", Limits)
TimingSection = _section("TimingSection", Timing)
JwtSection = _section("JwtSection", IssuerConfig)


class BrokerSettings(BaseSettings):
    """The merged settings, checked for types. `load` makes a BrokerConfig of them."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid")

    broker_id: int
    data_dir: str
    voters: list[str] = []
    join: list[str] = []
    secret_file: str
    listen: str = "127.0.0.1:7070"
    stream_listen: str = "127.0.0.1:0"
    peer_listen: str = "127.0.0.1:7170"
    advertise: str = ""
    stream_advertise: str = ""
    peer_advertise: str = ""
    dial: list[str] = []
    forward: list[str] = []
    metrics_listen: str = "127.0.0.1:9470"
    security: str = "off"
    tls_dir: str = ""
    client_certificates: bool = False
    access_required: bool = False
    tokens_without_tls: bool = False
    audit_dir: str = ""
    rack: str = ""
    auto_create_topics: bool = False
    default_partitions: int = 6
    registry: str = "replicated"
    limits: LimitsSection = LimitsSection()  # type: ignore[valid-type]
    timing: TimingSection = TimingSection()  # type: ignore[valid-type]
    jwt: JwtSection = JwtSection()  # type: ignore[valid-type]

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Give the environment precedence over the file, whose settings are the keyword arguments."""
        return env_settings, init_settings


def load(path: Path | None) -> BrokerConfig:
    """Load the configuration in `path` (None: only the environment). Raises InvalidConfig."""
    _check_environment(os.environ)
    source = str(path or "the environment")
    in_file = _read(path)
    for key in in_file:  # checked here, because pydantic takes a name with a leading underscore as its own option
        if key not in BrokerSettings.model_fields:
            raise _unknown((key,), source)
    try:
        settings = BrokerSettings(**in_file)
    except ValidationError as error:
        raise _explained(error, source) from None
    except (SettingsError, OverflowError, RecursionError) as error:
        raise InvalidConfig(f"{source} or the environment: {error}", hint=_AS_JSON) from None
    values = settings.model_dump()
    values["voters"] = tuple(parse_peer(voter) for voter in settings.voters)
    values["join"] = tuple(settings.join)
    for name in ("dial", "forward"):
        values[name] = tuple(parse_peer(peer, "a broker to dial") for peer in values[name])
    values["secret"] = read_secret(Path(values.pop("secret_file")))
    values["limits"] = Limits(**values["limits"])
    values["timing"] = Timing(**values["timing"])
    values["jwt"] = IssuerConfig(**values["jwt"])
    return BrokerConfig(**values)


def read_secret(path: Path) -> bytes:
    """The content of the file without surrounding blanks. Raises InvalidConfig if other users may read the file."""
    try:
        mode = path.stat().st_mode
        secret = path.read_bytes().strip()
    except (OSError, ValueError) as error:  # ValueError: the text is not a path
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidConfig(f"cannot read the secret file {str(path)!r}: {why}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidConfig(f"others may read the secret file {path}", hint=f"chmod 600 {path}")
    return secret


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or too deeply nested
        raise InvalidConfig(f"{path} is not TOML: {error}") from None


def _keys() -> dict[tuple[str, ...], list[str]]:
    """Known keys by section."""
    return {
        (): list(BrokerSettings.model_fields),
        ("limits",): list(LimitsSection.model_fields),
        ("timing",): list(TimingSection.model_fields),
        ("jwt",): list(JwtSection.model_fields),
    }


def _check_environment(environment: Mapping[str, str]) -> None:
    """Raise InvalidConfig for a variable that looks like a misspelt setting. Other variables are ignored."""
    known = [PREFIX + "__".join((*section, key)).upper() for section, keys in _keys().items() for key in keys]
    for name in environment:
        if name.startswith(PREFIX) and name not in known and name not in NOT_OURS:
            near = _nearest(name, known)
            if near:
                raise InvalidConfig(f"unknown environment variable {name}", hint=f"did you mean {near}?")


def _explained(error: ValidationError, source: str) -> InvalidConfig:
    """The first error in words. A misspelt key comes before the key that is missing because of it."""
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    place = tuple(str(part) for part in first["loc"])
    name = ".".join(place)
    if first["type"] == "extra_forbidden":
        return _unknown(place, source)
    if first["type"] == "missing":
        return InvalidConfig(f"{source} lacks {name!r}")
    return InvalidConfig(f"{name!r} in {source}: {first['msg']}")


def _unknown(place: tuple[str, ...], source: str) -> InvalidConfig:
    near = _nearest(place[-1], _keys().get(place[:-1], []))
    return InvalidConfig(f"unknown key {'.'.join(place)!r} in {source}", hint=f"did you mean {near!r}?" if near else "")


def _nearest(name: str, known: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), "")
