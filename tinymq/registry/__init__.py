"""The metadata: brokers, topics, partitions; `RegistryService` and its implementations."""
