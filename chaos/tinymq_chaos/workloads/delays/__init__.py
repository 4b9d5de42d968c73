"""Workloads of delayed records. checkers/records/scheduled.py judges the log that they leave."""
