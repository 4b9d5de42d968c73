"""The members of stream groups as a partition of `__coordinator` replicates them: values, and their state machine.

No decision is made here (tinymq/broker/coordinator), and no record passes through.
"""
