"""Promises about the cluster: elections, commits, metadata, leadership moves, deadlines of calls.

Records belong to `records`, what is kept of them to `bounds`.
"""
