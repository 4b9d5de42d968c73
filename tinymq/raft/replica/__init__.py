"""One replica of one group: roles, votes, log, and the seams to PySyncObj.

The only room that knows PySyncObj.
"""
