"""One replica's log over its segments: append, truncate, trim, read, recover.

This room decides what to write. The writer writes it. Files of single segments belong to `segment`.
"""
