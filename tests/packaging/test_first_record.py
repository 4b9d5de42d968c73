"""The first record of a process loads no library that it does not need."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

from tinymq import Client
from tinymq.testing import Cluster

SEND_AND_READ = """
import sys
import pyarrow
from tinymq import Client

with Client(sys.argv[1]) as mq:
    mq.send("first", b"a")  # through the loop
    with mq.producer() as producer:
        producer.send("first", None, key=b"k", headers={"trace": "1", "none": None})
        producer.send_batch("first", pyarrow.Table.from_batches([], pyarrow.schema({"value": pyarrow.binary()})))
    messages = list(mq.reader("first", end="latest"))
    assert [message.value for message in messages] == [b"a", None], messages
    assert mq.reader("first", end="latest").to_arrow().column("offset").to_pylist() == [0, 1]
print(*sys.modules)
"""


def test_a_process_that_sends_and_reads_records_loads_no_pandas() -> None:
    assert find_spec("pandas") is not None, "without pandas this shows nothing"
    with Cluster(nodes=1) as cluster:
        with Client(cluster.servers) as mq:
            mq.admin.create_topic("first", partitions=1, replication_factor=1)
        program = [sys.executable, "-c", SEND_AND_READ, cluster.servers]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "pandas" not in done.stdout.split()
