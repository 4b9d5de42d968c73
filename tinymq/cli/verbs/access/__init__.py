"""The verbs for users and what they may do: user, acl, auth and whoami.

What commands of any room need of tokens is in common; nothing here decides about access.
"""
