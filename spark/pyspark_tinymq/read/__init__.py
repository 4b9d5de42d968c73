"""Batches and streams, as Spark asks for them.

It asks `plan` for ranges and returns tasks.
"""
