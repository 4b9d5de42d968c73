"""The verbs for users and what they may do: user, acl, auth and whoami.

The parts of tokens that other rooms need are in `common`; nothing here decides about access.
"""
