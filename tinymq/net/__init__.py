"""Frames over TCP, connection limits, and the bounds of what a port receives.

It knows frames, not their meaning. What a message says belongs to `raft/net`, `rpc` and `client/net`.
"""
