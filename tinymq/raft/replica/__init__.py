"""One replica of one group: it dispatches events to its role, switches roles, and applies committed entries.

The decisions of each role lie in `raft.roles`, the state of a replica in `raft.state`. Nothing here knows other groups.
"""
