"""Frames over TCP, connection limits, and the bounds of what a port receives.

It knows frames, not their meaning. The content of messages belongs to `raft/net`, `rpc` and `client/net`.
"""
