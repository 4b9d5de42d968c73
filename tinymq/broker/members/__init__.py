"""The state machine that a partition of `__coordinator` replicates, and the members of stream groups as values.

The coordinator (tinymq/broker/coordinator) decides about groups, and this room replicates its decisions. Transactional
ids, which are decided when they are applied, are in the room `transactions`. Users' records never pass through here.
"""
