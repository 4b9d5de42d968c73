"""How a partition's leader recognises a batch that it has already, by the producer's numbers or by a message id.

This room keeps the entries that a leader has appended and not applied yet. The replicated state of producers and ids
belongs to `state`.
"""
