"""Fault tests on the real thing: broker processes, files, sockets, with a Toxiproxy proxy in every direction.

What runs in virtual time belongs to `sim`, and what both check to `checkers`.
"""
