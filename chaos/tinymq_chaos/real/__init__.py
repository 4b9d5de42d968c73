"""Fault tests on the real thing: broker processes, files, sockets, with a Toxiproxy proxy in every direction."""
