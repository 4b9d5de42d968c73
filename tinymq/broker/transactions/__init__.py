"""Transactions: one decision for batches in many partitions. Values and rules; nothing here does I/O.

transactional_ids.py is what a partition of `__coordinator` replicates, by the commands of commands.py and the decisions
of rules.py. staging.py has the decisions of a partition's leader. Records and offsets belong to `state` and
`partition`.
"""
