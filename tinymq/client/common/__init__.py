"""Values of the client: configuration, arguments and their checks, start positions.

Pure: no I/O and no other room of the client.
"""
