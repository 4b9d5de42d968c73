"""The client's values: settings, arguments and their checks, start positions.

It is pure. It does no I/O and uses no other room of the client.
"""
