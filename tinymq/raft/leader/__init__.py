"""A leader's state for one term: its followers' progress, and the snapshots it sends.

It exists while its replica leads.
"""
