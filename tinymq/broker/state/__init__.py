"""A partition's replicated state: producers, channels, holds and retention. All replicas compute the same state.

Pure: no clock and no I/O. State that only the leader has belongs to `partition`.
"""
