"""The client's connections: gRPC and the stream port, behind the protocols in ports.py.

It sends and receives. Which broker is asked belongs to `cluster`.
"""
