"""`make bench-peers`: plain writing and reading beside the peers. Writes benchmarks/RESULTS.md.

bench.py measures, page.py writes; the systems and their clients are in benchmarks/peers, groups in benchmarks/groups.
"""
