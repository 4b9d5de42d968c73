"""Makes the registry's commands from their arguments, and checks those before anything is sent. Pure.

`RegistryState.apply` refuses what depends on the state, such as a name that is taken or too few brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from tinymq.base.errors import InvalidRequest, UnsupportedVersion
from tinymq.base.topic_config import BY_NAME, SETTINGS, SETTINGS_MAX, TopicConfig, parse_settings
from tinymq.base.types import TopicId, check_channel_name, check_consumer_name, check_topic_name
from tinymq.format.feature_level import REGISTRY_COMMANDS
from tinymq.proto import registry_pb2 as pb
from tinymq.registry.state.records import check_record
from tinymq.registry.state.wire import config_to_wire

COMMAND_ID_BYTES = 16
U32_MAX = (1 << 32) - 1
U64_MAX = (1 << 64) - 1


def topic_id_of(command_id: bytes) -> TopicId:
    """The id of the topic that a command creates. A repeat of the command gives the same id."""
    return TopicId(blake2b(command_id, digest_size=16).digest())


def create_topic(
    name: str, partitions: int, replication_factor: int, config: TopicConfig, command_id: bytes
) -> pb.Command:
    """Raises InvalidName, InvalidRequest, as all of these functions do."""
    request = pb.CreateTopic(
        name=check_topic_name(name),
        topic_id=topic_id_of(command_id),
        partitions=_number("partitions", partitions),
        replication_factor=_number("replication_factor", replication_factor),
        config=config_to_wire(config),
    )
    return pb.Command(create_topic=request, command_id=command_id)


def alter_topic(name: str, settings: Sequence[tuple[str, str]], command_id: bytes) -> pb.Command:
    """Also raises InvalidConfig for a setting that is unknown or given twice, and for a value that it cannot have."""
    if len(settings) > SETTINGS_MAX:
        raise InvalidRequest(f"{len(settings)} settings", hint=f"name at most {SETTINGS_MAX} at once")
    parse_settings(settings)
    changed = [pb.Setting(name=setting, value=value) for setting, value in settings]
    request = pb.AlterTopic(name=check_topic_name(name), settings=changed)
    return pb.Command(alter_topic=request, command_id=command_id)


def delete_topic(name: str, command_id: bytes) -> pb.Command:
    return pb.Command(delete_topic=pb.DeleteTopic(name=check_topic_name(name)), command_id=command_id)


def add_partition(topic: str, command_id: bytes) -> pb.Command:
    return pb.Command(create_queue=pb.AddPartition(topic=check_topic_name(topic)), command_id=command_id)


def delete_partition(topic: str, partition: int, command_id: bytes, with_topic: bool, topic_id: bytes) -> pb.Command:
    request = pb.DeletePartition(
        topic=check_topic_name(topic),
        partition=_number("partition", partition),
        with_topic=with_topic,
        topic_id=topic_id,
    )
    return pb.Command(delete_queue=request, command_id=command_id)


def set_consumer(topic: str, partition: int, channel: str, consumer: str, command_id: bytes) -> pb.Command:
    request = pb.SetConsumer(
        topic=check_topic_name(topic),
        partition=_number("partition", partition),
        channel=check_channel_name(channel),
        consumer=check_consumer_name(consumer),
    )
    return pb.Command(set_consumer=request, command_id=command_id)


def unset_consumer(topic: str, partition: int, channel: str, epoch: int, command_id: bytes) -> pb.Command:
    request = pb.UnsetConsumer(
        topic=check_topic_name(topic),
        partition=_number("partition", partition),
        channel=check_channel_name(channel),
        epoch=_number("epoch", epoch, U64_MAX),
    )
    return pb.Command(unset_consumer=request, command_id=command_id)


def put_record(kind: str, name: str, value: bytes | None, version: int, command_id: bytes) -> pb.Command:
    """`value` None: remove the record. `version`: the record's present version; 0: there is no record."""
    check_record(kind, name, value or b"")
    request = pb.PutRecord(
        kind=kind, name=name, value=value or b"", version=_number("version", version, U64_MAX), remove=value is None
    )
    return pb.Command(put_record=request, command_id=command_id)


def raise_feature_level(level: int, at_version: int) -> pb.Command:
    return pb.Command(raise_feature_level=pb.RaiseFeatureLevel(level=level, at_version=at_version))


def level_of(command: pb.Command) -> int:
    """The lowest feature level at which a command may be proposed. Raises UnsupportedVersion for an unknown command."""
    name = command.WhichOneof("command") or ""
    level = REGISTRY_COMMANDS.get(name)
    if level is None:
        raise UnsupportedVersion("the registry does not know this command")
    if name == "create_topic":
        return max(level, config_level(command.create_topic.config))
    if name == "alter_topic":
        named = (BY_NAME.get(setting.name) for setting in command.alter_topic.settings)
        return max([level, *(setting.level for setting in named if setting is not None)])
    return level


def config_level(config: pb.TopicConfig) -> int:
    """The lowest feature level at which every broker keeps all of these settings."""
    # An older build drops a field that it does not know, and 0 or "" is what it reads then.
    return max(setting.level for setting in SETTINGS if setting.level == 1 or getattr(config, setting.field))


def _number(name: str, value: int, most: int = U32_MAX) -> int:
    if not 0 <= value <= most:
        raise InvalidRequest(f"{name} is {value}", hint=f"{name} is between 0 and {most}")
    return value
