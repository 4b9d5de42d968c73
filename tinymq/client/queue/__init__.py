"""A partition as a queue: written to, and read through a channel.

It combines `produce`, `consume` and `admin`, and has no call to a broker of its own.
"""
