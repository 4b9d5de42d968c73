"""Verbs of half messages. Those of transactions are in the room above, and what both ask is in the client."""
