"""Mutants of consumer groups: their coordinators, their members, and the cursors of groups in partitions.

Each names the test that fails without its rule. Importing a module enters its mutants into MUTANTS.
"""
