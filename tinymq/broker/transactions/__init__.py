"""Transactions: one decision for batches in many partitions. Rules only; nothing here does I/O.

transactional_id.py is the state of one transactional id, which a coordinator replicates. rules.py has the coordinator's
decisions on that state, staging.py those of a partition's leader. Records and offsets belong to `state` and
`partition`.
"""
