"""A partition's replicated state: producers, channels, holds and retention. Every replica computes the same.

Pure: no clock and no I/O. State that only the leader has belongs to `partition`.
"""
