"""JSON values as columns, as Spark's from_json reads them.

Pure.
"""
