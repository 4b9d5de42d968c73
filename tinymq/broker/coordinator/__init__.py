"""The leaders of `__coordinator`: coordinators of stream groups, and of transactions.

rules.py decides about members and coordinator.py answers them; transaction_coordinator.py leads transactions. The rooms
`members` and `transactions` have the replicated state. Users' records never pass through here.
"""
