"""Verbs of queues: a partition as a queue, its registered consumer, and programs for the records of a queue group.

Verbs that make, move and list groups are in the room above, and those of dead letters in `letters`.
"""
