"""One client for each process and cluster, which replicas it reads from, and the log.

Plans belong to `plan`.
"""
