"""Disks of real processes, with faults: slow, full, failing, and without power.

`faults` chooses the broker whose disk gets them.
"""
