"""Verbs of half messages. The verbs of transactions are in the room above; the client has the questions of both."""
