"""Transactions: one decision for batches in many partitions. Values and rules, and a leader's part over ports.

transactional_ids.py is what a partition of `__coordinator` replicates, by the commands of commands.py and the decisions
of rules.py. staging.py has the decisions of a partition's leader, and led_transactions.py carries them out. Records and
offsets belong to `state` and `partition`.
"""
