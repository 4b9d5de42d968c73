"""Processes of the harness: children, their ports, their health, and the tools they need.

The clusters of these processes belong to `cluster`.
"""
