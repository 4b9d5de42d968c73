"""Segment files: frames on disk, their index, scans, and snapshots that are kept beside them.

It knows one segment at a time.
"""
