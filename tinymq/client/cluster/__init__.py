"""The cluster as one client sees it: routes, the health of brokers, and calls that find their leader.

It knows partitions, not records.
"""
