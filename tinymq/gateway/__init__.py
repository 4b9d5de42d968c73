"""Doors for clients that are not tinymq's own: QueueService, one message at a time, at any broker.

A gateway takes a foreign call and makes the calls of tinymq's client for it. Rules of partitions belong to `broker`,
the services of tinymq's own client to `rpc`.
"""
