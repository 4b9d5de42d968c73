"""Feature levels: which level a build of tinymq knows, and which cluster level each entry, command and message needs.

Every broker announces the level that it knows: as `protocol_max` of its Hello to other brokers, and as `feature_level`
of its registration. A broker that announces no level knows level 1. The cluster's level, in the registry, is at most
the lowest level of all members. A replicated command raises it, and it never falls, so every member knows everything
that may be proposed.

To add an entry version, a registry command, a partition command or a message between brokers: raise KNOWN_LEVEL if it
is RELEASED_LEVEL, add the new item to a table here under KNOWN_LEVEL, and propose or send it only after `check`. Tests
compare the tables with the code and the .proto files. No I/O here.
"""

from __future__ import annotations

from collections.abc import Mapping

from tinymq.base.errors import UnsupportedVersion
from tinymq.format.delayed import PUBLISHED_VERSION
from tinymq.format.entry import Kind
from tinymq.format.transactional import COPIED_VERSION, RISING_VERSION, SCATTERED_VERSION, TRANSACTIONAL_VERSION

FIRST_LEVEL = 1  # known to a broker that announces no level
KNOWN_LEVEL = 5  # known to this build
RELEASED_LEVEL = 0  # known to the last release: no version is released, so what is new may still join KNOWN_LEVEL
DELAYS_LEVEL = 3  # of delayed batches
TRANSACTIONS_LEVEL = 4  # of transactions
COPIES_LEVEL = 5  # of copies of a transaction's batches

ENTRIES: Mapping[int, Mapping[int, int]] = {
    Kind.NOOP: {1: 1},
    Kind.CONFIG: {1: 1},
    Kind.DATA: {1: 1, PUBLISHED_VERSION: DELAYS_LEVEL},
    Kind.COMMAND: {1: 1, 2: 2, 3: TRANSACTIONS_LEVEL},
    Kind.STAGED: {1: DELAYS_LEVEL, TRANSACTIONAL_VERSION: TRANSACTIONS_LEVEL, COPIED_VERSION: COPIES_LEVEL},
    Kind.PUBLISH: {RISING_VERSION: TRANSACTIONS_LEVEL, SCATTERED_VERSION: COPIES_LEVEL},
    Kind.DISCARD: {1: DELAYS_LEVEL, TRANSACTIONAL_VERSION: TRANSACTIONS_LEVEL},
}
"""By kind: version of the entry → level. A replica that meets any other kind or version stops. The entry of a command
has the version that its newest content needs, so that a build that does not know the content stops instead of skipping
it. Version 3 of DATA is not free: it is MADE_VERSION, of frames that are made for readers and never stored."""

REGISTRY_COMMANDS: Mapping[str, int] = {
    "register_broker": 1,
    "unregister_broker": 1,
    "create_topic": 1,
    "delete_topic": 1,
    "take_producer_ids": 1,
    "alter_topic": 1,
    "create_queue": 1,
    "delete_queue": 1,
    "set_consumer": 1,
    "unset_consumer": 1,
    "raise_feature_level": 2,
    "put_record": 2,
}
"""By the command's name in registry.proto's Command."""

PARTITION_COMMANDS: Mapping[str, int] = {
    "open": 1,
    "commit": 1,
    "seek": 1,
    "delete": 1,
    "consume": 1,
    "move_start": 1,
    "hold": 1,
    "release": 1,
    "remove_acknowledged": 2,
    "make": 2,
    "drop": 2,
    "note_message_id": 2,
    "skip_duplicate": 2,
    "settle": 2,
    "open_session": 2,
    "end_session": 2,
    "raise_mark": 2,
    "bury": 2,
    "buried": 2,
    "note_copy": 2,
    "stage_offset": TRANSACTIONS_LEVEL,
    "publish_offsets": TRANSACTIONS_LEVEL,
    "stage_acks": TRANSACTIONS_LEVEL,
}
"""By the command's name in partition.proto's Command."""

TRANSACTION_COMMANDS: Mapping[str, int] = {
    "register": TRANSACTIONS_LEVEL,
    "begin": TRANSACTIONS_LEVEL,
    "add": TRANSACTIONS_LEVEL,
    "commit": TRANSACTIONS_LEVEL,
    "abort": TRANSACTIONS_LEVEL,
    "confirm": TRANSACTIONS_LEVEL,
    "time_out": TRANSACTIONS_LEVEL,
    "expire": TRANSACTIONS_LEVEL,
    "note_loss": TRANSACTIONS_LEVEL,
    "resolve": TRANSACTIONS_LEVEL,
    "open_set": TRANSACTIONS_LEVEL,
    "add_to_sets": TRANSACTIONS_LEVEL,
    "commit_sets": TRANSACTIONS_LEVEL,
    "discard_sets": TRANSACTIONS_LEVEL,
    "confirm_sets": TRANSACTIONS_LEVEL,
    "time_out_sets": TRANSACTIONS_LEVEL,
    "expire_application": TRANSACTIONS_LEVEL,
    "begin_half": TRANSACTIONS_LEVEL,
    "end_half": TRANSACTIONS_LEVEL,
    "count_check": TRANSACTIONS_LEVEL,
    "give_up_half": TRANSACTIONS_LEVEL,
    "confirm_half": TRANSACTIONS_LEVEL,
}
"""By the command's name in transaction.proto's TransactionCommand."""

PEER_MESSAGES: Mapping[str, int] = {
    "heartbeat": 1,
    "request_vote": 1,
    "vote": 1,
    "append": 1,
    "append_ack": 1,
    "commit_notice": 1,
    "timeout_now": 1,
    "leaders": 1,
    "request": 1,
    "reply": 1,
    "install_snapshot": 1,
    "snapshot_chunk": 1,
    "install_snapshot_ack": 1,
    "here": 1,
}
"""By the message's name in peer.proto's Peer."""

_NO_VERSIONS: Mapping[int, int] = {}
_UPGRADE = "upgrade every broker, and see which one keeps the level down: tinymq cluster feature-level show"


def knows_entry(kind: int, version: int) -> bool:
    """Does this build know entries of that kind and version?"""
    return version in ENTRIES.get(kind, _NO_VERSIONS)


def entry_level(kind: int, version: int) -> int:
    """The lowest level at which such an entry may be proposed. For an unknown entry it is above every level."""
    return ENTRIES.get(kind, _NO_VERSIONS).get(version, KNOWN_LEVEL + 1)


def entry_version(kind: int, level: int) -> int:
    """The version for an entry of that kind whose payload needs `level`."""
    return next(version for version, needed in sorted(ENTRIES[kind].items()) if needed >= level)


def check(what: str, needed: int, level: int) -> None:
    """Raises UnsupportedVersion if `what` needs a higher level than the cluster's."""
    if needed > level:
        message = f"{what} needs feature level {needed}, and this cluster is at {level}"
        raise UnsupportedVersion(message, hint=_UPGRADE, needed=needed, feature_level=level)


def check_member(broker_id: int, known: int, level: int) -> None:
    """Raises UnsupportedVersion for a broker that does not know the cluster's feature level."""
    if known < level:
        message = f"broker {broker_id} knows feature level {known}, and this cluster is at {level}"
        raise UnsupportedVersion(message, hint=f"install a newer tinymq on broker {broker_id}", feature_level=level)
