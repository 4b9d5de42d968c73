"""Whole brokers on virtual time, disks, clocks and network, from one seed."""
