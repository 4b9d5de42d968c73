"""Half messages: their replicated state, and the decisions on it. Values only.

What leaders of `__coordinator` ask checkers and partitions is in the room `half_messages`.
"""
