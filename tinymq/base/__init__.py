"""Values, errors, the clock and configuration. Every room stands on this one.

It imports nothing of tinymq, and does no I/O (private_files.py, which opens files safely for all, is the exception).
"""
