"""Storage engines: logs on disk and logs in memory, and the data directory that holds them.

The rooms above open logs through this one.
"""
