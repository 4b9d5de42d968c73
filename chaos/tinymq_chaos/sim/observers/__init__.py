"""Checks that look at a world while it runs, at every event.

Checks of a finished history are in tinymq_chaos/checkers.
"""
