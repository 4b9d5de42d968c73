"""Decisions of one broker: partitions, produce, fetch, admin. No gRPC here."""
