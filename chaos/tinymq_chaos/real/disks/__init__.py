"""Disks of real processes, with faults: slow, full, failing, and without power.

Which broker's disk is hurt belongs to `faults`.
"""
