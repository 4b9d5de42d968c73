"""Common parts of the verbs: output, exit codes, options, units, escapes.

No verb belongs here.
"""
