"""One replica of one group: it dispatches events to its role, switches roles, and applies what is committed.

What a role decides lies in `raft.roles`, and what a replica keeps in `raft.state`. Nothing here knows other groups.
"""
