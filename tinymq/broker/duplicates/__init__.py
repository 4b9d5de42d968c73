"""How a partition's leader recognises a batch that it has already, by the producer's numbers or by a message id.

Here is what one leader has appended and not applied yet. What is replicated about producers and ids belongs to `state`.
"""
