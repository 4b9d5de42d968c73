"""Local clusters of plain processes, for `tinymq dev`, for tests and for the chaos harness.

It starts, watches and stops processes. What a command prints belongs to `cli`.
"""
