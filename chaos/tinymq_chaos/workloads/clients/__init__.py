"""Clients that workloads call as they call an `AsyncClient`: the synchronous one on threads.

Workloads do not belong here.
"""
