"""Checks of a running world, at every event.

Checks of a finished history are in tinymq_chaos/checkers.
"""
