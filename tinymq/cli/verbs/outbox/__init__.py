"""Verbs of the outbox of a database: the relay, its state, and what an operator decides.

What they do is in `tinymq.outbox`; verbs of transactions of the log are in the room above.
"""
