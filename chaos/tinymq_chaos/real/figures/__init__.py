"""Figures of what a client sees of failures, in seconds and shares, with many real failures of real brokers.

`python -m tinymq_chaos.real.figures` measures and prints the table of docs/reliability.md; see __main__.py.
"""
