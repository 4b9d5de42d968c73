"""The simulated cluster: brokers, disks, clients, and the harness's observations of them.

Faults belong to `faults`, checks to `observers` and to tinymq_chaos/checkers.
"""
