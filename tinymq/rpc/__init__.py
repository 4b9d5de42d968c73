"""Thin adapters between gRPC and `tinymq.broker`."""
