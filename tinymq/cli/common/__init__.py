"""What verbs share: output, exit codes, options, units, escapes.

No verb belongs here.
"""
