"""Transactions: records in several partitions that all become visible, or none of them.

Not here: how batches are made and sent (produce), and the calls to the coordinator (cluster).
"""
