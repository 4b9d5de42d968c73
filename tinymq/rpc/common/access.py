"""The operation and the resource of each RPC, by which access control decides about callers. This module makes no
decision.

Every method that serves an RPC declares both (tinymq/rpc/common/rpc_method.py). The operations are Kafka's, so that
its rules can be carried over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Operation = Literal["read", "write", "describe", "create", "alter", "delete", "cluster_action"]
"""`describe` changes nothing and shows no record; `cluster_action` is for brokers and operators with the secret."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of resource that a request names. A request without any of `fields` concerns all resources of the kind."""

    kind: str
    fields: tuple[str, ...]  # paths in requests, such as "commands.channel"; the first present one names the resource


CLUSTER = Resource("cluster", ())
TOPIC = Resource("topic", ("topic", "topic_id", "topics", "batches.topic_id", "name"))
GROUP = Resource("group", ("group", "name", "attach.group"))
CHANNEL = Resource("channel", ("channel", "commands.channel"))


@dataclass(frozen=True, slots=True)
class Access:
    """The permission that a caller of an RPC needs."""

    operation: Operation
    resource: Resource
