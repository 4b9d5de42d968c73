"""One run: workloads, faults on schedule, calm, verdict.

It knows its subject by the contract in `subject` only.
"""
