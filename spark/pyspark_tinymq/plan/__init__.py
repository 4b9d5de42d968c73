"""What a query reads: ranges of offsets, split into tasks, and held while they are read.

It runs in the driver; task.py runs in the executors.
"""
