"""Raft's decisions, as pure functions and values: elections, commits, membership, recovery.

No I/O, no clock, no PySyncObj. Each rule is tested by itself.
"""
