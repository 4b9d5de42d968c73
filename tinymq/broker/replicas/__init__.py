"""The partitions that this broker holds: opened, trimmed, recovered, and led where they should be.

Nothing here serves a client's call.
"""
