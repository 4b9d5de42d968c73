"""Workloads of consumer groups: members that join, read, commit and leave.

As all workloads, they use tinymq's client and write every call into the history. They judge nothing.
"""
