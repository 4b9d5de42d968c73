"""The content of a snapshot: the applied CONFIG and the state machine's state. It replaces removed entries.

offset size field
     0    8 index   u64  of the newest CONFIG entry that the state includes
     8    8 term    u64  of that entry
    16    4 length  u32  bytes of its payload
    20    … payload of the CONFIG entry (peer.proto Config), then the state machine's state

Equal logs give equal bytes on every replica. The file and the transfer add the checksums.
"""

from __future__ import annotations

import struct

from tinymq.base.errors import CorruptData
from tinymq.raft.rules.configs import Config
from tinymq.raft.rules.membership import pack_membership, parse_membership

_HEAD = struct.Struct("<QQI")


def pack_checkpoint(config: Config, state: bytes) -> bytes:
    """Return the content of a snapshot. `config` is the applied CONFIG, `state` the state machine's dump."""
    payload = pack_membership(config.membership)
    return _HEAD.pack(config.index, config.term, len(payload)) + payload + state


def parse_checkpoint(data: bytes) -> tuple[Config, bytes]:
    """Return the applied CONFIG and the state machine's state. Raises CorruptData."""
    if len(data) < _HEAD.size:
        raise CorruptData("truncated snapshot: no CONFIG")
    index, term, length = _HEAD.unpack_from(data)
    end = _HEAD.size + length
    if len(data) < end:
        raise CorruptData("truncated snapshot: no CONFIG")
    return Config(index, term, parse_membership(data[_HEAD.size : end])), data[end:]
