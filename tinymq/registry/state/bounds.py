"""Bounds of the registry's state. Part of the replicated behaviour, not settings: brokers with
different values would compute different states."""

ANSWERED_MAX = 1024  # commands whose answers are remembered
DELETED_MAX = 10_000  # ids of deleted topics that are remembered
PARTITIONS_PER_TOPIC_MAX = 1024
PARTITIONS_MAX = 20_000
PARTITION_NUMBER_MAX = (1 << 31) - 1  # deleted ones count: a number is never used again
CONSUMERS_PER_QUEUE_MAX = 1000
CONSUMERS_MAX = 100_000
ANNOUNCED_MAX = 1000  # brokers whose feature level is remembered; all others count as FIRST_LEVEL
RECORD_VALUE_BYTES_MAX = 64 * 1024
RECORDS_MAX = 10_000
RECORDS_BYTES_MAX = 8 * 1024 * 1024  # of kinds, names and values together
PRODUCER_IDS_MAX = 100_000  # in one command
