"""A broker's HTTP pages: metrics for Prometheus, and its state as JSON. The relay of an outbox shows metrics, too.

Changes nothing.
"""
