"""One replica of a partition, and what its leader decides: what it appends, when it answers, whom it wakes.

Nothing here serves a network call. The Raft group is known by `group_port.py` only.
"""
