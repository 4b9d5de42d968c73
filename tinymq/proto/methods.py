"""The RPCs of the public services, as their descriptors declare them. No list of RPCs is kept by hand."""

from __future__ import annotations

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tinymq.base.value import value
from tinymq.proto import tinymq_pb2 as pb


@value
class Method:
    """One RPC of a service in tinymq.proto."""

    service: str  # such as "Admin"
    name: str  # such as "CreateTopic"
    path: str  # as gRPC sends it: "/tinymq.v1.Admin/CreateTopic"
    request: type[Message]
    reply: type[Message]
    streams: bool  # both directions are streams; otherwise one request has one reply

    @property
    def label(self) -> str:
        """The name in metrics and in messages: "Admin.CreateTopic"."""
        return f"{self.service}.{self.name}"


METHODS: dict[str, Method] = {
    f"/{service.full_name}/{method.name}": Method(
        service=service.name,
        name=method.name,
        path=f"/{service.full_name}/{method.name}",
        request=GetMessageClass(method.input_type),
        reply=GetMessageClass(method.output_type),
        streams=method.client_streaming,
    )
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
"""Every RPC of every service, by its path."""


def method_named(service: str, name: str) -> Method:
    """Return an RPC by its service and its name. Raises KeyError."""
    return METHODS[f"/{pb.DESCRIPTOR.package}.{service}/{name}"]


# AsyncProduceMessage has the request type of ProduceMessage, which is declared before it and is therefore found.
_BY_REQUEST: dict[type[Message], Method] = {method.request: method for method in reversed(METHODS.values())}


def method_of(request: Message) -> Method:
    """Return the RPC that `request` is sent to: the first RPC that is declared with this type of request."""
    return _BY_REQUEST[type(request)]
