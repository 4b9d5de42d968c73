"""An event loop, disks and a transcript in virtual time.

Faults of brokers and workloads are above this room.
"""
