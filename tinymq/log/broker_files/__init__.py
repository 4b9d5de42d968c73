"""The small files of a broker: its identity, its votes, its durability marks, its boot id.

Each is one value, kept durable. Logs belong to `segment` and `replica_log`.
"""
