"""Topics, channels, holds and the state of the cluster, asked and changed from outside.

No record is sent or read here.
"""
