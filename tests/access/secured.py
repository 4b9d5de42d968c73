"""A cluster that checks its callers, with an administrator and some users, for tests over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from tinymq import Client
from tinymq.base.errors import TinymqError
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import TRAILER, from_wire
from tinymq.proto.methods import METHODS, Method, method_named
from tinymq.rpc.common.rpc_method import ITEMS
from tinymq.rpc.operator_calls.first_administrator import make_administrator
from tinymq.testing import Cluster
from tinymq.testing.cluster import SECRET

CALL_S = 20.0


class Secured:
    """A running cluster whose checks are on, and the tokens of its users by name."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        servers = cluster.servers.split(",")
        self.tokens = {"root": asyncio.run(make_administrator(servers, SECRET, "root", CALL_S))}
        self.root = self.client("root")
        for topic in ("orders", "orders.eu", "secret-plans"):
            self.root.admin.create_topic(topic, 2)
        self.root.access.switch(True)
        self.wait_checked()

    def wait_checked(self, on: bool = True) -> None:
        """Wait until every broker checks callers, or none does."""
        gates = [app.gate for app in self.cluster.brokers.values()]
        self.cluster.wait_until(lambda: all(gate.on is on and not gate.deaf for gate in gates))

    def wait_heard(self) -> None:
        """Wait until every broker knows every change of users so far."""
        ids = list(self.cluster.brokers)
        newest = self.cluster.call(lambda: max(self.cluster.registry(each).version for each in ids))
        self.cluster.wait_until(lambda: all(self.cluster.registry(each).version >= newest for each in ids))

    def client(self, user: str, **settings: Any) -> Client:
        """A client of a user; "": of a stranger."""
        return self.cluster.client(token=self.tokens.get(user, ""), **settings)

    def user(self, name: str, *grants: str) -> Client:
        """Make a user with these grants, such as "read topic:orders", and return its client."""
        self.root.access.create_user(name)
        self.tokens[name] = self.root.access.create_token(name, label="of a test")
        self.allow(name, *grants)
        return self.client(name)

    def allow(self, name: str, *grants: str) -> None:
        for grant in grants:
            operation, _, resource = grant.partition(" ")
            self.root.access.grant(name, operation, resource)
        self.wait_heard()

    def refuse(self, name: str, *grants: str) -> None:
        for grant in grants:
            operation, _, resource = grant.partition(" ")
            self.root.access.revoke(name, operation, resource)
        self.wait_heard()

    def topic_id(self, topic: str) -> bytes:
        return self.cluster.call(lambda: self.cluster.registry(1).get_topic(topic).topic_id)  # type: ignore[union-attr]

    def raw(self, method: Method, request: Any, token: str = "", broker: int = 1, **metadata: str) -> Any:
        """Make one call over gRPC as any program would. Returns the reply or the first answer of a stream, or the
        error."""
        channel = grpc.insecure_channel(self.cluster.address(broker), [("grpc.enable_http_proxy", 0)])
        sent = [(name.replace("_", "-"), text) for name, text in metadata.items()]
        sent += [("authorization", f"Bearer {token}")] if token else []
        try:
            if method.streams:
                call = channel.stream_stream(
                    method.path, method.request.SerializeToString, method.reply.FromString
                )  # fmt: skip
                reply = next(call(iter([request]), timeout=CALL_S, metadata=sent))
            else:
                call = channel.unary_unary(method.path, method.request.SerializeToString, method.reply.FromString)
                reply = call(request, timeout=CALL_S, metadata=sent)
        except grpc.RpcError as error:
            trailer = dict(error.trailing_metadata() or ())[TRAILER]  # type: ignore[attr-defined]
            return from_wire(pb.Error.FromString(trailer))
        finally:
            channel.close()
        return error_in(reply) or reply


def error_in(reply: Any) -> TinymqError | None:
    """The error of a reply, or of its first item that has one."""
    names = reply.DESCRIPTOR.fields_by_name
    if "error" in names and reply.HasField("error"):
        return from_wire(reply.error)
    for name in (*ITEMS, "results", "ended"):
        for part in getattr(reply, name) if name in names else ():
            if "error" in part.DESCRIPTOR.fields_by_name and part.HasField("error"):
                return from_wire(part.error)
    return None


def named(label: str) -> Method:
    service, _, name = label.partition(".")
    return method_named(service, name)


@contextmanager
def secured(nodes: int = 1, **settings: Any) -> Iterator[Secured]:
    with Cluster(nodes=nodes, **settings) as cluster:
        yield Secured(cluster)


ALL = sorted(method.label for method in METHODS.values())
