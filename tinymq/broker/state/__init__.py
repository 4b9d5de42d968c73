"""A partition's replicated state: producers, channels, holds, retention. Every replica computes the same.

Pure: no clock and no I/O. What only the leader knows belongs to `partition`.
"""
