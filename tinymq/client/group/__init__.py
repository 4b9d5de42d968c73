"""Consumers: members of stream groups, and readers of several topics. Above `consume`, which fetches, and `admin`.

membership.py talks to the group's coordinator, assigned_buffer.py has the fetched records, consumer.py is the object.
"""
