"""Local clusters of plain processes, for `tinymq dev`, for tests and for the chaos harness.

This room starts, watches and stops processes. The printed output of commands belongs to `cli`.
"""
