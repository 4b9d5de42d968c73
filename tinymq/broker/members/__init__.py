"""The members of stream groups as a partition of `__coordinator` replicates them: values, and their state machine.

The coordinator (tinymq/broker/coordinator) decides, and this room replicates its decisions. Users' records never pass
through it.
"""
