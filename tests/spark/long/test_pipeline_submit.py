"""orders_to_delta and backfill under spark-submit, on all orders of CDNOW."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from deltalake import DeltaTable

from pipelines import load, orders
from pipelines.submitting import Submitted
from tinymq import Client
from tinymq.testing.cluster import Cluster

RUN_S_MAX = 600.0

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def mq(cluster: Cluster) -> Client:
    """With all orders in the topic `orders`."""
    client = cluster.client()
    client.admin.create_topic("orders", 6)
    load.send(client, "orders", load.SOURCES["orders"](), lambda _: None)
    return client


@pytest.fixture(scope="module")
def file() -> pd.DataFrame:
    """The same orders as pandas reads them."""
    found = pd.read_csv(orders.find_data(), sep=r"\s+", dtype={"customer_id": str}, parse_dates=["date"])
    return found.assign(cents=(found["dollar_value"] * 100).round().astype(int))


def _submit(program: str, folder: Path, *arguments: str) -> tuple[int, str]:
    """Return its exit code and its output."""
    with Submitted(program, arguments, folder / "log") as run:
        code = run.wait(RUN_S_MAX)
    return code, run.log.read_text(errors="replace")


def test_all_orders_and_all_customers(mq: Client, cluster: Cluster, file: pd.DataFrame, tmp_path: Path) -> None:
    tables = {name: str(tmp_path / name) for name in ("orders", "customers")}
    given = ["--servers", cluster.servers, "--checkpoint", str(tmp_path / "state"), "--until-end"]
    given += [text for name, folder in tables.items() for text in (f"--{name}", folder)]
    code, said = _submit("orders_to_delta.py", tmp_path, *given)
    assert code == 0, said
    assert "69,659 orders worth $2,500,315.63" in said
    assert "23,570 customers as of 1998-06-30" in said
    found = DeltaTable(tables["customers"]).to_pyarrow_table().to_pandas().set_index("customer").sort_index()
    expected = file.groupby("customer_id").agg(orders=("cents", "size"), cents=("cents", "sum"), last=("date", "max"))
    assert found["orders"].tolist() == expected["orders"].tolist()
    assert found["cents"].tolist() == expected["cents"].tolist()
    assert [f"{day}" for day in found["last"]] == [f"{day.date()}" for day in expected["last"]]
    assert found.index.tolist() == expected.index.tolist()


def test_a_backfill_of_a_quarter(mq: Client, cluster: Cluster, file: pd.DataFrame, tmp_path: Path) -> None:
    mq.admin.create_topic("large-orders", 2)
    given = ["--servers", cluster.servers, "--from", "orders", "--to", "large-orders", "--schema", "cents BIGINT"]
    given += ["--since", "1997-04-01", "--until", "1997-07-01", "--where", "json.cents >= 10000", "--ordered"]
    code, said = _submit("backfill.py", tmp_path, *given)
    assert code == 0, said
    quarter = file[(file["date"] >= "1997-04-01") & (file["date"] < "1997-07-01")]
    large = quarter[quarter["cents"] >= 10_000]
    counts = f"{len(quarter):,} records of that time, {len(large):,} of them written to large-orders"
    assert f"{counts}, which grew by {len(large):,}" in said
    copied = mq.reader("large-orders", end="latest").to_arrow()
    assert sorted(key.decode() for key in copied["key"].to_pylist()) == sorted(large["customer_id"])
    code, said = _submit("backfill.py", tmp_path, *given, "--value", "1")
    assert code == 2
    assert "error: --value is a int" in said
