"""A loop, disks and a transcript in virtual time.

Nothing here knows of brokers' faults or of workloads.
"""
