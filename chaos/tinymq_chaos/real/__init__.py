"""Fault tests with real broker processes, files and sockets, and a Toxiproxy proxy in every direction.

Virtual time belongs to `sim`, and common checks to `checkers`.
"""
