"""Stream groups: who is a member, and which member reads which partition. Kept in the topic `__coordinator`.

rules.py decides, replica.py stores, coordinator.py listens. No record passes through here.
"""
