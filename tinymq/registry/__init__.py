"""The metadata of a cluster: `RegistryService` and its implementations.

Nothing here knows a partition's records. The broker follows the registry by its effects.
"""
