"""The `tinymq` command: its verbs, and what all verbs share.

A verb parses options, calls the client or `dev`, and prints. Decisions about a cluster belong to lower rooms.
"""
