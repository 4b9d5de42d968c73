"""One replica's log over its segments: append, truncate, trim, read, recover.

It decides what is to be written. The `writer` writes it.
"""
