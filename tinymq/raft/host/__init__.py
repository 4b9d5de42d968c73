"""All replicas of one broker: this room opens, schedules and repairs them, and brings them their messages.

It decides nothing about a group's log.
"""
