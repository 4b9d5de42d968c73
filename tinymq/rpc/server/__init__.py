"""The ports on which clients are served, gRPC's and the stream port.

It opens, bounds and closes connections. The services answer on them.
"""
