"""docs/metrics.md names exactly the metrics that a broker shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.patience import PATIENT
from tests.metrics.pages import scrape
from tinymq.base.config import Limits
from tinymq.base.errors import TopicExists
from tinymq.testing import Cluster

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(tinymq_\w+)` \| (\w+) \|([^|]*)\|[^|]+\|[^|]*\|$", re.MULTILINE)
UNITS = ("seconds", "bytes", "entries", "records")  # that come last in a name


@dataclass(frozen=True, slots=True)
class Shown:
    """One metric, as the page or a broker names it."""

    name: str
    type: str
    labels: frozenset[str]


def documented() -> list[Shown]:
    return [
        Shown(name, type_, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, type_, labels in ROW.findall(PAGE.read_text())
    ]


@pytest.fixture(scope="module")
def exposed() -> Iterator[list[Shown]]:
    """The metrics of brokers that have done a little of everything."""
    limits = Limits(client_produce_bytes_per_s=1000, segment_bytes=64 << 20)
    with Cluster(3, metrics=True, limits=limits, timing=PATIENT) as cluster:
        client = cluster.client()
        client.admin.create_topic("t", partitions=1, replication_factor=3)
        for _ in range(3):
            client.send("t", b"x" * 500)  # more than a client may send at once
        with pytest.raises(TopicExists):
            client.admin.create_topic("t", partitions=1, replication_factor=3)
        with client.queue("t", 0, "c") as queue:
            assert queue.poll(1)
        client.admin.create_group("full", "t", kind="queue", settings={"leased_max": 1})
        with client.consumer("t", group="readers") as reading, client.worker("t", group="full") as working:
            assert reading.poll(30.0)
            assert working.poll(30.0)
            found: dict[str, Shown] = {}
            for family in (family for broker in (1, 2, 3) for family in scrape(cluster, broker).values()):
                if family.name.startswith("tinymq_"):
                    name = f"{family.name}_total" if family.type == "counter" else family.name
                    labels = {label for sample in family.samples for label in sample.labels} - {"le"}
                    known = found.get(name, Shown(name, family.type, frozenset()))
                    found[name] = Shown(name, family.type, known.labels | labels)
            yield list(found.values())


def test_every_metric_is_on_the_page_as_it_is(exposed: list[Shown]) -> None:
    assert set(exposed) - set(documented()) == set()
    assert len(exposed) > 30


def test_the_page_names_nothing_that_is_not_there(exposed: list[Shown]) -> None:
    assert set(documented()) - set(exposed) == set()
    assert len({shown.name for shown in documented()}) == len(documented()) == PAGE.read_text().count("\n| `tinymq_")


def test_names_say_their_unit_last() -> None:
    for shown in documented():
        words = shown.name.removesuffix("_total").split("_")
        assert (shown.type == "counter") == shown.name.endswith("_total"), shown.name
        assert not [word for word in words[:-1] if word in UNITS], shown.name
        assert shown.type != "histogram" or words[-1] == "seconds", shown.name


def test_every_name_in_the_text_is_in_the_table() -> None:
    named = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for page in (PAGE, PAGE.with_name("operations.md"))
        for name in re.findall(r"\btinymq_[a-z_]+\b", page.read_text())
    }
    of_relays = {name for name, *_ in ROW.findall(PAGE.with_name("outbox.md").read_text())}  # test_outbox.py
    assert of_relays
    assert named - {shown.name for shown in documented()} - of_relays == set()
