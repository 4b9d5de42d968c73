"""What transactions change in a partition beside their staged batches: offsets of cursors, and what published records
need of the log. Not here: the staged batches (staged.py), and decisions on transactions (tinymq/broker/transactions).
"""
