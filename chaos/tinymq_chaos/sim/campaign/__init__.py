"""Simulated runs: one seed after another, the plan of a run, and its verdict.

The parts of a world belong to `world`.
"""
