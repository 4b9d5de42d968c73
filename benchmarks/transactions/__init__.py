"""`make bench-transactions`: transactions beside Kafka's, delayed messages and Spark's sink. Writes TRANSACTIONS.md.

bench.py runs the rows: beside.py those that have a peer, in the order of plan.py; delayed.py and sink.py the others.
The systems and their clients are in benchmarks/peers.
"""
