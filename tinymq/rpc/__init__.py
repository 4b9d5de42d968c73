"""Thin adapters between gRPC and `tinymq.broker`."""

from __future__ import annotations

from tinymq.proto import grpc_core

# Before any module of this room imports gRPC. Its handlers for forks would end the child of a process with brokers,
# such as the JVM that PySpark starts beside a tinymq.testing.Cluster.
with grpc_core.settings():
    import grpc.aio  # noqa: F401
