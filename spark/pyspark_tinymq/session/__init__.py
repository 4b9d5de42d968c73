"""One client for each process and cluster, the choice of replicas to read from, and the log.

Plans belong to `plan`.
"""
