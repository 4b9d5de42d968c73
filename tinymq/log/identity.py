"""Whose data folder this is: broker, incarnation and cluster, in `broker.json`; and in which kind of registry the
cluster's topics are, one word in `registry`, written when the broker first takes part in its cluster.

One JSON object, a line for each field, readable by a person: `format` 1, `broker_id`, `incarnation` (16 random
bytes in hex, new with each folder), `cluster_id` (hex, "" until the cluster is formed), and `crc32c` of the
object without that field, its keys sorted and no space in it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from tinymq.entry import crc32c
from tinymq.errors import CorruptData, UnsupportedVersion
from tinymq.log.files import Files
from tinymq.log.layout import IDENTITY, REGISTRY
from tinymq.log.rounds import read_whole

FORMAT = 1
_WORD = re.compile(rb"[a-z]{1,32}\n?")
_MEND = (
    f"restore {IDENTITY} as it was, from a copy: it never changes once the cluster is formed. Without one, keep the "
    "folder, and leave this broker stopped: the other replicas have its data"
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose folder it is. `cluster_id` is None until the cluster is formed."""

    broker_id: int
    incarnation: bytes  # 16 random bytes
    cluster_id: bytes | None = None


def _checksum(fields: dict[str, object]) -> int:
    return crc32c(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())


def read_identity(files: Files) -> Identity | None:
    """None when there is none. Raises CorruptData, UnsupportedVersion."""
    data = read_whole(files, IDENTITY)
    if data is None:
        return None
    try:
        fields = json.loads(data)
        crc = fields.pop("crc32c")
        if crc != _checksum(fields):
            raise CorruptData(f"{IDENTITY} has a wrong checksum", hint=_MEND)
        if fields["format"] != FORMAT:
            raise UnsupportedVersion(f"a data folder of format {fields['format']}; this build reads {FORMAT}")
        cluster_id = bytes.fromhex(fields["cluster_id"]) or None
        return Identity(int(fields["broker_id"]), bytes.fromhex(fields["incarnation"]), cluster_id)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptData(f"{IDENTITY} is not readable: {error!r}", hint=_MEND) from error


def write_identity(files: Files, identity: Identity) -> None:
    """Durable when it returns; a crash leaves the old one or the new one. Raises StorageError."""
    fields: dict[str, object] = {
        "format": FORMAT,
        "broker_id": identity.broker_id,
        "incarnation": identity.incarnation.hex(),
        "cluster_id": (identity.cluster_id or b"").hex(),
    }
    _replace(files, IDENTITY, json.dumps({**fields, "crc32c": _checksum(fields)}, indent=2).encode() + b"\n")


def read_registry(files: Files) -> str | None:
    """None when there is none. Raises CorruptData."""
    data = read_whole(files, REGISTRY)
    if data is None:
        return None
    if not _WORD.fullmatch(data):
        hint = f"write the broker's registry into it, replicated, memory or zookeeper, or remove {REGISTRY}"
        raise CorruptData(f"{REGISTRY} in the data folder is not readable", hint=hint)
    return data.decode().strip()


def write_registry(files: Files, kind: str) -> None:
    """As write_identity."""
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
    files.sync_folder("")
