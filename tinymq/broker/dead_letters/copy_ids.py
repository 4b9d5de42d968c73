"""The ids under which brokers copy records. A copy that is sent again has the same id, and is therefore stored once.

The hash of a copy's id has a personalization of its own, so it never equals the hash of a user's message id. A
partition remembers ids of copies in a separate table, so that users' ids cannot displace them. Pure.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

from tinymq.broker.duplicates.message_ids import CopyId
from tinymq.broker.state.message_ids import ID_BYTES

_BURIAL = b"tinymq burial"
_REDRIVE = b"tinymq redrive"
_PLACE = struct.Struct("<16sIQ")
_GROUP = struct.Struct("<QQI")

RUN_BYTES = 16


def burial_id(topic_id: bytes, partition: int, offset: int, *, history: int, group_id: int, generation: int) -> CopyId:
    """The id of the copy of a record that a group gives up.

    `history` is the term of the newest recovery of the source's log: after a recovery, another record may have the same
    offset. `generation` is that of the group's cursor when the burial begins: after a seek, the group may give up the
    same record again.
    """
    named = _PLACE.pack(topic_id, partition, offset) + _GROUP.pack(history, group_id, generation)
    return CopyId(blake2b(named, digest_size=ID_BYTES, person=_BURIAL).digest())


def redrive_id(topic_id: bytes, partition: int, offset: int, run: bytes) -> CopyId:
    """The id of the copy of a dead letter that is sent back. `run`: RUN_BYTES that name one request and its repeats."""
    named = _PLACE.pack(topic_id, partition, offset) + run
    return CopyId(blake2b(named, digest_size=ID_BYTES, person=_REDRIVE).digest())
