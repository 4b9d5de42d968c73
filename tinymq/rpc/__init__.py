"""Thin adapters between gRPC and `tinymq.broker`."""

from __future__ import annotations

import os

# As in tinymq/client/net/grpc_transport.py: gRPC's handlers for forks end the child of a process with brokers, such as
# the JVM that PySpark starts beside a tinymq.testing.Cluster.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
