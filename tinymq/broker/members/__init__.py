"""The members of stream groups as a partition of `__coordinator` replicates them: values, and their state machine.

The coordinator decides (tinymq/broker/coordinator). This room only stores what it decides, and stores no records.
"""
