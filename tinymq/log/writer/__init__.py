"""The writer job of a broker: what all logs have to write, in batches of one sync each.

The only room that syncs logs while a broker runs.
"""
