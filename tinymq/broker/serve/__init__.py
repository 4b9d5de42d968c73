"""What a broker answers: produce, fetch, single messages, offsets, quotas.

No gRPC and no frames: `rpc` calls it.
"""
