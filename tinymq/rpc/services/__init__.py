"""One adapter per service: a request in, the broker's answer out.

No decision belongs here, for the broker makes it.
"""
