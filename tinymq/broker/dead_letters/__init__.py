"""Dead letters: records that a queue group gives up are copied to another topic, once, and sent back on request.

This room has the I/O of burials on the partition's leader, and the receiver of copies. The replicated state of a burial
is in `state`. The leader of the queue group decides when a record is given up.
"""
