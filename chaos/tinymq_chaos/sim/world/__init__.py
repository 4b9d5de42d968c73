"""The simulated cluster: brokers, disks, clients, and what the harness sees of them.

Faults belong to `faults`, checks to `observers` and to tinymq_chaos/checkers.
"""
