"""Verbs about the user's own machine: the clusters that it knows, its shell, and what it finds and measures from here.

Verbs that change a cluster are in the room above.
"""
