"""The rules of delayed batches: what a leader may append about them, when they are due, and what is copied.

Nothing here appends or waits: the partition's leader does that (tinymq/broker/partition/staged/delays.py). What is
replicated about delayed batches belongs to `state`.
"""
