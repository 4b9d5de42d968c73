"""Mutants of transactions: of coordinators, of the batches and offsets that partitions stage, and of the members whose
offsets a transaction commits. Rules of partitions that hold without transactions, too, have theirs in partitions.py.
"""
