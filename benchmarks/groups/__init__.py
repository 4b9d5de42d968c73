"""`make bench-groups`: what consumer groups cost and how they behave, beside their peers. Writes benchmarks/GROUPS.md.

bench.py runs the parts; throughput.py measures all systems in turns, failures.py and loads.py tinymq alone. The systems
and their clients are in benchmarks/peers.
"""
