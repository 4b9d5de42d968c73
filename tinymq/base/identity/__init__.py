"""Credentials, users and grants as values that brokers, clients and the CLI share.

The registry alone knows which users exist and what each was granted (tinymq/access). No decision is made here.
"""
