"""Plans the ranges of offsets that a query reads, splits them into tasks, and holds them meanwhile.

These modules run in the driver. Only task.py runs in the executors.
"""
