"""The feature level: what a build of tinymq knows, and from which level of the cluster on each thing may be proposed.

Every broker announces the level that it knows: `protocol_max` of its Hello to other brokers, and `feature_level` of its
registration. One that announces nothing knows level 1. The registry's level is at most the least of all members'. It
rises by a replicated command and never falls, so whatever may be proposed at it is known to every member.

To add an entry version, a registry command, a command of a partition or a message between brokers: raise KNOWN_LEVEL
if the last release has the present one, enter the new thing here under that level, and propose or send it only after
`check`. Tests hold the tables to what the code and the .proto files have. No I/O here.
"""

from __future__ import annotations

from collections.abc import Mapping

from tinymq.entry import Kind
from tinymq.errors import UnsupportedVersion

FIRST_LEVEL = 1  # what a broker knows that announces nothing
KNOWN_LEVEL = 2  # what this build knows

ENTRIES: Mapping[int, Mapping[int, int]] = {
    Kind.NOOP: {1: 1},
    Kind.CONFIG: {1: 1},
    Kind.DATA: {1: 1},
    Kind.COMMAND: {1: 1, 2: 2},
}
"""By kind: version of the entry → level. A replica that meets another kind or version stops. A command's entry has the
version of the newest thing that it says, so that a build that does not know it stops rather than passes over it."""

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
"""By its name in registry.proto's Command."""

PARTITION_COMMANDS: Mapping[str, int] = {
    "open": 1,
    "commit": 1,
    "seek": 1,
    "delete": 1,
    "consume": 1,
    "move_start": 1,
    "hold": 1,
    "release": 1,
}
"""By its name in partition.proto's Command."""

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
    "state_offer": 1,
    "state_piece": 1,
    "state_ack": 1,
    "here": 1,
}
"""By its name in peer.proto's Peer."""

_NO_VERSIONS: Mapping[int, int] = {}
_UPGRADE = "upgrade every broker, and see what keeps the level: tinymq cluster feature-level show"


def knows_entry(kind: int, version: int) -> bool:
    """Does this build know what such an entry says?"""
    return version in ENTRIES.get(kind, _NO_VERSIONS)


def entry_level(kind: int, version: int) -> int:
    """The level from which on such an entry may be proposed; above every level for one that is unknown."""
    return ENTRIES.get(kind, _NO_VERSIONS).get(version, KNOWN_LEVEL + 1)


def entry_version(kind: int, level: int) -> int:
    """The version of an entry of that kind whose payload needs `level`."""
    return next(version for version, needed in sorted(ENTRIES[kind].items()) if needed >= level)


def check(what: str, needed: int, level: int) -> None:
    """Raises UnsupportedVersion for what needs a higher level than the cluster's."""
    if needed > level:
        message = f"{what} needs feature level {needed}, and this cluster is at {level}"
        raise UnsupportedVersion(message, hint=_UPGRADE, needed=needed, feature_level=level)


def check_member(broker_id: int, known: int, level: int) -> None:
    """Raises UnsupportedVersion for a broker that knows less than the cluster may propose."""
    if known < level:
        message = f"broker {broker_id} knows feature level {known}, and this cluster is at {level}"
        raise UnsupportedVersion(message, hint=f"install a newer tinymq on broker {broker_id}", feature_level=level)
