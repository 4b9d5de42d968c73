"""A network, disks and a clock in memory, with faults on demand.

These objects replace the real I/O below a broker, and pass the same contract tests. Tests and checkers do not belong
here.
"""
