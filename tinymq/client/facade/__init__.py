"""The two clients that an application sees: AsyncClient, and the synchronous Client over it.

Thin: every method passes on to another room.
"""
