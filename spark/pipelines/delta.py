"""Appends to a Delta table that change nothing when they are done again.

Delta's log remembers, for each application, the version of its last transaction, in the same commit as the data:
https://github.com/delta-io/delta/blob/master/PROTOCOL.md#transaction-identifiers
"""

from __future__ import annotations

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake


def exists(table: str) -> bool:
    """Whether there is such a table."""
    return bool(DeltaTable.is_deltatable(table))


def append(table: str, rows: pa.Table, app: str, version: int) -> bool:
    """Append `rows` as transaction `version` of application `app`, making the table if need be, in one commit.

    False: that transaction, or a later one of the application, was there, and nothing was done. Raises DeltaError; so
    does whoever of two writers of the same application comes second.
    """
    target: DeltaTable | str = table
    if exists(table):
        target = DeltaTable(table)
        last = target.transaction_version(app)
        if last is not None and last >= version:
            return False
    properties = CommitProperties(app_transactions=[Transaction(app, version)])
    write_deltalake(target, rows, mode="append", commit_properties=properties)
    return True


def replace(table: str, rows: pa.Table) -> None:
    """Make `rows` all that the table holds, in one commit: readers see the old rows, or the new ones."""
    write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite")


def files(table: str) -> list[str]:
    """The Parquet files that the table's newest version consists of, for Spark to read: it needs no jar for that."""
    return list(DeltaTable(table).file_uris())
