"""How a broker comes into its cluster and stays in it: formation, join, addresses, registration, feature level.

Partitions belong to `replicas`.
"""
