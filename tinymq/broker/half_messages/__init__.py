"""Half messages at the leaders of `__coordinator`: whom they ask for outcomes, and how decisions reach partitions.

The room `transactions` has the replicated state and the schedule; `coordinator` has the calls between brokers. Half
messages themselves are batches of transactions: partitions know nothing else of them.
"""
