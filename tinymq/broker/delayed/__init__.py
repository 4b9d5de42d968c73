"""The rules of delayed batches: what a leader may append about them, and when they are due.

Nothing here appends or waits: the partition's leader does that (tinymq/broker/partition/staged/delays.py). The
replicated state of delayed batches belongs to `state`.
"""
