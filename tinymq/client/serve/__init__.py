"""Handlers: functions of the application that are called for each record of a group. It stands on `group` and `work`,
which have the records.

subscription.py says what is handled, serving_run.py runs it, and a source (source.py) hides the kind of the group.
"""
