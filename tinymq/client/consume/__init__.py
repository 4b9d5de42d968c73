"""Reading: fetches, buffers, readers, scans, and the cursors of channels.

It stands on `cluster`.
"""
