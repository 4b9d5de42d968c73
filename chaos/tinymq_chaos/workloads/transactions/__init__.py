"""Workloads of transactions. checkers/records/transactions.py judges the logs that they leave."""
