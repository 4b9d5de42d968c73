"""Promises about the cluster: elections, commits, metadata, leadership moves, deadlines of calls.

Promises about records belong to `records`, promises about what is kept to `bounds`.
"""
