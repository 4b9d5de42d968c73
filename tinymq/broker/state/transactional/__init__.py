"""The other effects of transactions on a partition: offsets and acks of cursors, and the entries of the log that
published records need. Not here: the staged batches (staged.py), and decisions on transactions
(tinymq/broker/transactions).
"""
