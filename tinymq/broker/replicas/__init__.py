"""The replicas that this broker holds: opening, retention, recovery, and preferred leaders.

Nothing here serves a client's call.
"""
