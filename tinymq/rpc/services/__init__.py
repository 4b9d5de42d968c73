"""One adapter per service: a request in, the broker's answer out.

Decisions belong to the broker, not here.
"""
