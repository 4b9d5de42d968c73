"""The ids under which brokers copy records. A copy that is sent again has the id of the first, and is stored once.

They are hashed under names of their own, and a partition remembers them in a table of their own, so that no message id
of a user is ever equal to one, or displaces one. Pure.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

from tinymq.broker.partition.message_ids import CopyId
from tinymq.broker.state.message_ids import ID_BYTES

_BURIAL = b"tinymq burial"
_REDRIVE = b"tinymq redrive"
_PLACE = struct.Struct("<16sIQ")
_GROUP = struct.Struct("<QQI")

RUN_BYTES = 16


def burial_id(topic_id: bytes, partition: int, offset: int, *, history: int, group_id: int, generation: int) -> CopyId:
    """The id of the copy of a record that a group gives up.

    `history`: the term of the newest recovery of the source's log, because another record may have the offset after
    it. `generation`: of the group's cursor when the burial begins, because after a seek the record may be given up
    again.
    """
    named = _PLACE.pack(topic_id, partition, offset) + _GROUP.pack(history, group_id, generation)
    return CopyId(blake2b(named, digest_size=ID_BYTES, person=_BURIAL).digest())


def redrive_id(topic_id: bytes, partition: int, offset: int, run: bytes) -> CopyId:
    """The id of a dead letter that is sent back. `run`: RUN_BYTES, of one request; its repeats have the same."""
    named = _PLACE.pack(topic_id, partition, offset) + run
    return CopyId(blake2b(named, digest_size=ID_BYTES, person=_REDRIVE).digest())
