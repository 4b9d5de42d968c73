"""The network of real processes, with faults: lines between places, through Toxiproxy.

It knows places and ports, not brokers.
"""
