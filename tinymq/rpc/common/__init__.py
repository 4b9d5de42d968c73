"""Common parts of all services: error statuses, request bounds, metering, forwarding.

No service belongs here.
"""
