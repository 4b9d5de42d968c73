"""The table of RPCs comes from the descriptors, and the type of a request names its RPC."""

from __future__ import annotations

from collections import Counter

from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.methods import METHODS, method_named, method_of


def test_every_rpc_is_in_the_table() -> None:
    declared = {
        f"/{service.full_name}/{method.name}"
        for service in pb.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert set(METHODS) == declared
    created = method_named("Admin", "CreateTopic")
    assert created is METHODS["/tinymq.v1.Admin/CreateTopic"]
    assert (created.label, created.streams) == ("Admin.CreateTopic", False)
    assert (created.request, created.reply) == (pb.CreateTopicRequest, pb.CreateTopicReply)
    streams = [method.label for method in METHODS.values() if method.streams]
    assert streams == ["Broker.Produce", "Broker.Fetch", "Workers.Work"]


def test_a_type_of_request_names_one_rpc() -> None:
    """Only QueueService's two produce RPCs share a type. They differ in the promise of their answers."""
    shared = [kind for kind, count in Counter(method.request for method in METHODS.values()).items() if count > 1]
    assert shared == [pb.ProduceMessageRequest]
    assert method_of(pb.ProduceMessageRequest()).name == "ProduceMessage"
    assert all(method_of(m.request()).path == m.path for m in METHODS.values() if m.request not in shared)
