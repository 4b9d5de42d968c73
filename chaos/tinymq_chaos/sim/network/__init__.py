"""Calls and streams between simulated clients and brokers.

The network between brokers is in tinymq/simulation.
"""
