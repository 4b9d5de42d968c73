"""Appends to a Delta table so that a repeated append changes nothing.

Delta's log remembers, for each application, the version of its last transaction, in the same commit as the data:
https://github.com/delta-io/delta/blob/master/PROTOCOL.md#transaction-identifiers
"""

from __future__ import annotations

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake


def exists(table: str) -> bool:
    """Tell whether the table exists."""
    return bool(DeltaTable.is_deltatable(table))


def append(table: str, rows: pa.Table, app: str, version: int) -> bool:
    """Append `rows` as transaction `version` of application `app` in one commit, which creates the table if needed.

    Returns False, without a change, if the table has this transaction or a later one of the application. Raises
    DeltaError, also when two writers of one application append at once: the second of them fails.
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
    """Replace all rows of the table with `rows` in one commit: readers see the old rows, or the new ones."""
    write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite")


def files(table: str) -> list[str]:
    """Return the Parquet files of the table's newest version, which Spark can read without Delta's jar."""
    return list(DeltaTable(table).file_uris())
