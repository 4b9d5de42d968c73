"""Workers of queue groups: records are leased, handed out, and settled one by one. Beside `group`, which has members.

partition_work.py decides about one partition, broker_work.py is the stream to one broker, worker.py is the object.
"""
