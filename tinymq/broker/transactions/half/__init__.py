"""Half messages: their replicated state, and the decisions on it. Values only.

The calls of `__coordinator`'s leaders to checkers and partitions are in the room `half_messages`.
"""
