"""Promises about what a partition keeps: capacity, retention, trims, sizes.

It may import `records`.
"""
