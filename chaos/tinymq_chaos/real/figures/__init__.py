"""What a client sees of failures, in seconds and shares: measured over many of them, with real brokers and real faults.

`python -m tinymq_chaos.real.figures` measures and prints the table of docs/reliability.md; see __main__.py.
"""
