"""Spark's data source `tinymq`: topics as DataFrames, batch and streaming, read from follower replicas.

Import-light: Spark imports this module to find the name, in every session. Neither grpc nor tinymq is loaded here.
"""
