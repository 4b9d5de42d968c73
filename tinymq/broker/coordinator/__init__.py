"""Stream groups: their members, and the assignment of partitions to them. The topic `__coordinator` stores both.

rules.py decides, and coordinator.py answers members. The room `members` stores the state. Users' records never pass
through here.
"""
