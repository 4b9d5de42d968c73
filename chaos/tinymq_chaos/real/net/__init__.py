"""The network of real processes, with faults: connections between places, through Toxiproxy.

It knows places and ports, not brokers.
"""
