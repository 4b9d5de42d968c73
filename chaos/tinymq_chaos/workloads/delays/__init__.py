"""Workloads of delayed records. What the log says about them is judged in checkers/records/scheduled.py."""
