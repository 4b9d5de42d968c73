"""Consumer groups: their records in the registry, and their cursors in the partitions of their topics.

It may use the parts of a broker below it. Membership of stream groups is decided elsewhere.
"""
