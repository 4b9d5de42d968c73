"""Whole brokers on virtual time, disks, clocks and network, from one seed.

Real processes belong to `real`. The network and the disks of brokers are in tinymq/simulation.
"""
