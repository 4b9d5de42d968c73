"""A partition as an application uses it: as a queue, through a channel of its own.

It puts `produce`, `consume` and `admin` together.
"""
