"""Sending: batches, partitions, retries, deliveries.

It stands on `cluster`.
"""
