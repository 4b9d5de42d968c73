"""Transactions: one decision for batches in many partitions. Rules only; nothing here does I/O.

transactional_id.py is what a coordinator replicates of one transactional id, rules.py decides about it, staging.py
decides on the leader of a partition. Records and offsets belong to `state` and `partition`.
"""
