"""A network, disks and a clock in memory, with faults on demand.

It stands in for real I/O below a broker, and passes the same contract tests. No test and no checker belongs here.
"""
