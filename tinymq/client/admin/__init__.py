"""The admin client: topics, channels, holds and the state of the cluster.

It neither sends nor reads records.
"""
