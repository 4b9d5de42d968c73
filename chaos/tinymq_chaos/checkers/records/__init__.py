"""Promises about records: nothing acknowledged is lost, changed, repeated or shown too early.

Bounds and retention belong to `bounds`.
"""
