"""A cluster of real brokers behind proxies, and the process that runs one of them.

Runs belong to `run`.
"""
