"""One run: workloads, faults on schedule, calm, verdict.

It knows the system under test only by the contract in `system`.
"""
