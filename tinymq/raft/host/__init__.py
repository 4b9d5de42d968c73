"""All replicas of one broker: opened, scheduled, repaired, and reached by messages.

It decides nothing about a group's log.
"""
