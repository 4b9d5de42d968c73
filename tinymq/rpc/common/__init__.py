"""What all services share: error statuses, request bounds, metering, forwarding.

No service belongs here.
"""
