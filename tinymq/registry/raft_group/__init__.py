"""The registry on a Raft group of its own: the implementation that needs nothing besides the brokers.

Its rules are in `state`.
"""
