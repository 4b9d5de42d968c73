"""The disk as an argument: the contract for files, its real and its in-memory implementation, and the names of files.

Nothing here knows of logs.
"""
