"""Simulated runs: one seed after another, the plan of a run, and its verdict.

What a world is made of belongs to `world`.
"""
