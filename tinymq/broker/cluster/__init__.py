"""How a broker enters its cluster and stays in it: formation, join, addresses, registration, feature level.

Partitions belong to `replicas`.
"""
