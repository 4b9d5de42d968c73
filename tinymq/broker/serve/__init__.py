"""The answers to clients: fetch, single messages, offsets, producer ids, quotas.

Nothing here knows gRPC or frames: `rpc` calls this room.
"""
