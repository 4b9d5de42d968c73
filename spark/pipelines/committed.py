"""Reads, without Spark, the rows that a streaming query has committed to a folder of Parquet files.

A file counts once the sink's log in `_spark_metadata` names it. Files that a killed batch left behind do not count. The
log has a file for each batch, and now and then a file N.compact for all batches up to N.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq

LOG = "_spark_metadata"
VERSION = "v1"
NAME = re.compile(r"(\d+)(\.compact)?")


def committed_files(log: Mapping[str, str]) -> list[str]:
    """Return the paths that a sink's log names. `log` has the text of each of its files. Pure. Raises ValueError."""
    matches = {name: match for name in log if (match := NAME.fullmatch(name))}
    compact = max((int(match[1]) for match in matches.values() if match[2]), default=-1)
    names = [(int(match[1]), name) for name, match in matches.items() if bool(match[2]) == (int(match[1]) == compact)]
    files = []
    for _, name in sorted(each for each in names if each[0] >= compact):
        version, *lines = log[name].splitlines()
        if version != VERSION:
            raise ValueError(f"{LOG}/{name} has version {version!r}, not {VERSION}")
        for line in lines:
            entry = json.loads(line)
            if entry["action"] != "add":
                raise ValueError(f"{LOG}/{name} has an entry that is not {'add'!r}: {line}")
            files.append(unquote(urlparse(entry["path"]).path))
    return files


def read(folder: Path) -> pa.Table:
    """Return all committed rows, in order of commit. Raises FileNotFoundError if no batch was ever committed."""
    log = {path.name: path.read_text() for path in (folder / LOG).iterdir() if NAME.fullmatch(path.name)}
    files = committed_files(log)
    if not files:
        raise FileNotFoundError(f"{folder} has no committed file")
    return pa.concat_tables([pq.ParquetFile(path).read() for path in files])
