"""Synchronous classes of transactions and half messages. Nothing here is written by hand: see generate.py."""
