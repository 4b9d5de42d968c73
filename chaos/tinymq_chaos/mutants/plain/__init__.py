"""How many mutants plain runs catch: runs that `make sim` draws from a seed, without a plan for the mutant.

The results belong here, and no mutant does.
"""
