"""One partition on the broker that leads it: what it appends, when it answers, whom it wakes.

It knows its Raft group by group_port.py only.
"""
