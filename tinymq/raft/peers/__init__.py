"""The other brokers: whether they are alive, what time they say it is, which replicas lead.

Nothing here is decided for a single group.
"""
