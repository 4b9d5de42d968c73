"""What a partition's leader stages: batches that get their offsets later, because they are delayed or of transactions.

The pure rules are in `delayed` and `transactions`. Records that get their offsets at once belong to `partition` itself.
"""
