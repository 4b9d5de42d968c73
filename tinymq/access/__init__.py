"""Who calls, what each caller may do, and the record of both: users, tokens, roles and grants from the registry.

It knows neither gRPC nor HTTP: those adapters hand over a Credential, and ask the Gate. No partition is touched here.
"""
