"""Batches that a partition's leader stages: delayed ones, and those of transactions. They get their offsets later.

The pure rules are in `delayed` and `transactions`. Records that get their offsets at once belong to `partition` itself.
"""
