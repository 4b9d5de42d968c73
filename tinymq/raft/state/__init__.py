"""What a replica keeps in every role, and the one port through which its roles change that.

`ReplicaState` is the port. PySyncObj lies behind it: only `pysyncobj_state` and `pysyncobj_seams` name its internals.
Nothing here decides anything.
"""
