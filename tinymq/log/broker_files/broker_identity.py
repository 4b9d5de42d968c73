"""The owner of a data directory: broker, incarnation and cluster, in `broker.json`.

The file is one JSON object with a line for each field, which a person can read: `format`, `broker_id`, `incarnation`
(16 random bytes in hex, new with each directory), `cluster_id` (hex, "" until the cluster is formed), and `crc32c` of
the object without that field, with sorted keys and no spaces. `held_level` is present while an operator holds the
cluster's feature level.

`format` is 1 until the broker has seen its cluster at a feature level above 1. Then it is 2, and `feature_level` has
that level. A build without feature levels does not open such a directory.

The file `registry` has one word, the kind of the cluster's registry. It is written when the broker first takes part in
its cluster.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from tinymq.base.errors import CorruptData
from tinymq.format.entry import crc32c
from tinymq.format.feature_level import FIRST_LEVEL, KNOWN_LEVEL, check_member
from tinymq.log.files.file_version import newer_version
from tinymq.log.files.files import Files
from tinymq.log.files.layout import IDENTITY, REGISTRY
from tinymq.log.files.record_file import read_whole

FORMAT, FORMAT_LEVELLED = 1, 2  # the second one has a feature level
_WORD = re.compile(rb"[a-z]{1,32}\n?")
_MEND = (
    f"restore {IDENTITY} from a copy: once the cluster is formed, the file changes only with the feature level. "
    "Without a copy, keep the directory, and leave this broker stopped: the other replicas have its data"
)


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The owner of a data directory. `cluster_id` is None until the cluster is formed."""

    broker_id: int
    incarnation: bytes  # 16 random bytes
    cluster_id: bytes | None = None
    feature_level: int = FIRST_LEVEL  # the highest level at which this broker has seen its cluster
    held_level: int = 0  # the highest level that the broker announces; 0: the one that its build knows


def _checksum(fields: dict[str, object]) -> int:
    return crc32c(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())


def read_identity(files: Files) -> BrokerIdentity | None:
    """Read `broker.json`; None if it is missing. Raises CorruptData, UnsupportedVersion."""
    data = read_whole(files, IDENTITY)
    if data is None:
        return None
    try:
        fields = json.loads(data)
        crc = fields.pop("crc32c")
        if crc != _checksum(fields):
            raise CorruptData(f"{IDENTITY} has a wrong checksum", hint=_MEND)
        if fields["format"] not in (FORMAT, FORMAT_LEVELLED):
            raise newer_version("the data directory", fields["format"], FORMAT_LEVELLED)
        level = int(fields.get("feature_level", FIRST_LEVEL))
        broker_id, incarnation = int(fields["broker_id"]), bytes.fromhex(fields["incarnation"])
        check_member(broker_id, KNOWN_LEVEL, level)
        cluster_id = bytes.fromhex(fields["cluster_id"]) or None
        return BrokerIdentity(broker_id, incarnation, cluster_id, level, int(fields.get("held_level", 0)))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptData(f"{IDENTITY} is not readable: {error!r}", hint=_MEND) from error


def write_identity(files: Files, identity: BrokerIdentity) -> None:
    """Write `broker.json`; it is durable when this returns. A crash leaves the old one or the new one. Raises
    StorageError."""
    fields: dict[str, object] = {
        "format": FORMAT if identity.feature_level == FIRST_LEVEL else FORMAT_LEVELLED,
        "broker_id": identity.broker_id,
        "incarnation": identity.incarnation.hex(),
        "cluster_id": (identity.cluster_id or b"").hex(),
    }
    if identity.feature_level > FIRST_LEVEL:
        fields["feature_level"] = identity.feature_level
    if identity.held_level:
        fields["held_level"] = identity.held_level
    _replace(files, IDENTITY, json.dumps({**fields, "crc32c": _checksum(fields)}, indent=2).encode() + b"\n")


def read_registry(files: Files) -> str | None:
    """Read the kind of the registry; None if it is not stored yet. Raises CorruptData."""
    data = read_whole(files, REGISTRY)
    if data is None:
        return None
    if not _WORD.fullmatch(data):
        hint = f"write the broker's registry into it, replicated, memory or zookeeper, or remove {REGISTRY}"
        raise CorruptData(f"{REGISTRY} in the data directory is not readable", hint=hint)
    return data.decode().strip()


def write_registry(files: Files, kind: str) -> None:
    """Write the kind of the registry, as durably as `write_identity`."""
    _replace(files, REGISTRY, kind.encode() + b"\n")


def _replace(files: Files, name: str, data: bytes) -> None:
    new = name + ".new"
    files.remove(new)
    file = files.open(new, create=True)
    try:
        file.write(0, [data])
        files.sync([file])
    finally:
        file.close()
    files.rename(new, name)
    files.sync_directory("")
