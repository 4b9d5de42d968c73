"""Handlers: functions of the application that are called for each record of a group. Above `group`, which has records.

subscription.py says what is handled, server.py runs it, and a source (source.py) hides which kind of group it is.
"""
