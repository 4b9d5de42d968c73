"""The bytes that are stored and sent: batches, log entries, and what a build knows of them.

Pure: bytes in, values out. Where the bytes lie and how they travel belongs to `log` and `net`.
"""
