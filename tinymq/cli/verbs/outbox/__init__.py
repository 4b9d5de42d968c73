"""Verbs of the outbox of a database: the relay, its state, and what an operator decides.

Their work is done by `tinymq.outbox`; verbs of transactions of the log are in the room above.
"""
