"""Authentication, authorization and their audit log, by the registry's users, tokens, roles and grants.

It knows neither gRPC nor HTTP: those adapters hand over a Credential, and ask the Gate. No partition is touched here.
"""
