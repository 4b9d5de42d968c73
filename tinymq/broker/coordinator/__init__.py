"""Stream groups: their members, and the assignment of partitions to them. The topic `__coordinator` stores both.

rules.py decides, replica.py stores, coordinator.py listens. No record passes through here.
"""
