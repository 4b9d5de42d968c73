"""The state that a replica has in every role, and the only port through which its roles change it.

`ReplicaState` is the port. PySyncObj lies behind it: only `pysyncobj_state` and `pysyncobj_seams` name its internals.
No decision is made here.
"""
