"""Transactions: records in several partitions that all become visible, or none of them, with offsets of groups.

Not here: how batches are made and sent (produce), how members read (group), and the calls to the coordinator (cluster).
"""
