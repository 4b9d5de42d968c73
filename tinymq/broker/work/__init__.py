"""Workers of queue groups: their attachments, grants with the records, and settlements, on the leader of a partition.

It decides nothing about a lease (tinymq/broker/groups/queue_leases.py), and knows no wire.
"""
