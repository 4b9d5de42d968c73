"""The disk as an argument: the contract for files, its real and its in-memory implementation, and the names of files.

No module here knows of logs.
"""
