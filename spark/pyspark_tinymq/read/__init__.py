"""The readers of batches and streams, which Spark calls.

They get ranges from `plan`, and return tasks.
"""
