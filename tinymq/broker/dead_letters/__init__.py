"""Dead letters: records that a queue group gives up are copied to another topic, once, and sent back on request.

The replicated state of a burial is in `state`; here are the I/O of its leader, and the receiver of copies. Does not
decide when a record is given up: the leader of the queue group does.
"""
