"""Processes of the harness: children, their ports, their health, and the tools they need.

What they are a cluster of belongs to `cluster`.
"""
