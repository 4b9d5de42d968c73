"""Workers of queue groups: their attachments, grants with the records, and settlements, on the leader of a partition.

The rules of leases are in tinymq/broker/groups/queue_leases.py, and the messages on the wire in `rpc`.
"""
