"""The writer job of a broker: it writes what all logs have queued, in batches of one sync each.

No other room syncs logs while a broker runs.
"""
