"""A real Prometheus scrapes a real cluster: its samples, the page's queries, and the page's alerts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.patience import PATIENT
from tests.metrics.pages import OPENMETRICS, get
from tests.metrics.prometheus import MISSING, Prometheus, find, promtool
from tinymq.testing import Cluster

OPERATIONS = Path(__file__).resolve().parent.parent.parent / "docs" / "operations.md"
ROOT = OPERATIONS.parent.parent
RECORDS = 200
GONE, REPLICA, LEADER, SLOW, CHANNEL = range(5)
RULES = ROOT / "deploy" / "prometheus" / "tinymq.rules.yml"
UNITS = RULES.with_name("tinymq.rules.test.yml")


def watching() -> str:
    """Return a section of the page."""
    return OPERATIONS.read_text().partition("\n## Watching\n")[2].partition("\n## ")[0]


def alerts() -> list[str]:
    """Return the expressions of its table, which escapes a bar within code."""
    rows = re.findall(r"^\| [^|`]+ \| `(.+?)` \| \d+[sm] \| ", watching(), re.MULTILINE)
    return [row.replace("\\|", "|") for row in rows]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, metrics=True, timing=PATIENT) as made:
        client = made.client()
        client.admin.create_topic("orders", partitions=3, replication_factor=3)
        for n in range(RECORDS):
            client.send("orders", b"x" * 100, key=b"%d" % n)
        with client.queue("orders", 0, "billing") as queue:
            assert queue.poll(1)
        yield made


@pytest.fixture(scope="module")
def prometheus(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    targets = [cluster.metrics_address(broker) for broker in (1, 2, 3)]
    with Prometheus(tmp_path_factory.mktemp("prometheus"), targets) as made:
        made.until('up{job="tinymq"}', [1, 1, 1])
        yield made


def test_the_page_is_as_prometheus_wants_pages(cluster: Cluster) -> None:
    for broker in (1, 2, 3):
        page = get(cluster.metrics_address(broker), "/metrics")[2]
        assert promtool("check", "metrics", given=page) == ""
    assert promtool("check", "metrics", given=page.replace("counter", "gauge")) != "", "a wrong rule would have failed"


def test_written_records_are_counted_once_over_all_brokers(prometheus: Prometheus) -> None:
    prometheus.until('sum(tinymq_produced_records_total{topic="orders"})', [RECORDS])
    prometheus.until("sum(tinymq_produce_seconds_count)", [RECORDS])
    prometheus.until('max by (partition) (tinymq_replica_leading{topic="orders"})', [1, 1, 1])
    prometheus.until('count by (topic) (tinymq_follower_lag_entries{topic="orders"})', [6])
    lag = "max by (topic, partition) (tinymq_replica_high_watermark) - on (topic, partition) group_right "
    assert lag in (OPERATIONS.parent / "metrics.md").read_text()
    prometheus.until(lag + 'tinymq_replica_high_watermark{topic="orders"}', [0] * 9)


def test_quantiles_of_the_histograms(cluster: Cluster, prometheus: Prometheus) -> None:
    """Query rates while records are written: a rate needs two scrapes."""
    client = cluster.client()
    slow, (limit_s,) = alerts()[SLOW], re.findall(r" > (\d)$", alerts()[SLOW])
    quantiles = [slow.removesuffix(f" > {limit_s}").replace("produce", name) for name in ("produce", "commit", "sync")]
    for expression in quantiles:
        found = prometheus.query(expression)
        while not [value for _, value in found if value > 0]:
            client.send("orders", b"y")
            found = prometheus.query(expression)
        ((_, quantile_s),) = found
        assert 0.00001 < quantile_s < 30, expression
        assert prometheus.query(f"{expression} > 30") == []


def test_openmetrics_is_understood_by_a_scraper_that_asks_for_it(cluster: Cluster, prometheus: Prometheus) -> None:
    """Prometheus negotiates the format itself, and reports the targets whose pages it could not read."""
    assert get(cluster.metrics_address(1), "/metrics", OPENMETRICS)[2].endswith("# EOF\n")
    assert prometheus.query("scrape_samples_scraped > 100") != []
    prometheus.until('up{job="tinymq"} == 1', [1, 1, 1])


def test_the_configuration_on_the_page_is_one(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", watching(), re.DOTALL)
    config = tmp_path / "prometheus.yml"
    config.write_text(text)
    assert promtool("check", "config", str(config)) == ""


def test_alerts_fire_when_a_broker_is_gone_and_not_otherwise(tmp_path: Path) -> None:
    assert len(alerts()) == 14
    with Cluster(3, metrics=True, timing=PATIENT) as cluster:
        client = cluster.client()
        client.admin.create_topic("orders", partitions=1, replication_factor=3)
        client.admin.create_topic("alone", partitions=3, replication_factor=1)
        client.send("orders", b"x")
        targets = [cluster.metrics_address(broker) for broker in (1, 2, 3)]
        with Prometheus(tmp_path, targets) as prometheus:
            prometheus.until('up{job="tinymq"}', [1, 1, 1])
            for which in (GONE, REPLICA, LEADER, CHANNEL):
                prometheus.until(f"absent({alerts()[which]})", [1])
            cluster.kill(2)
            ((labels, _),) = prometheus.until(alerts()[GONE], [0])
            assert labels["instance"] == targets[1]
            cluster.kill(3)
            found = prometheus.until(alerts()[LEADER])
            assert {labels["topic"] for labels, _ in found} <= {"orders", "(metadata)"}
            prometheus.until(alerts()[REPLICA])


def test_a_channel_that_falls_behind(cluster: Cluster, prometheus: Prometheus) -> None:
    less = alerts()[CHANNEL].replace("100000", "5")
    client = cluster.client()
    found = prometheus.query(less)
    while not found:
        client.send("orders", b"more", partition=0)
        found = prometheus.query(less)
    assert [labels["channel"] for labels, _ in found] == ["billing"]


def test_the_rules_are_the_alerts_of_the_page() -> None:
    rules = re.findall(r"^        expr: (.+)\n        for: (.+)$", RULES.read_text(), re.MULTILINE)
    rows = re.findall(r"^\| [^|`]+ \| `(.+?)` \| (\d+[sm]) \| ", watching(), re.MULTILINE)
    assert rules == [(expression.replace("\\|", "|"), lasts) for expression, lasts in rows]
    assert "deploy/prometheus/tinymq.rules.yml" in watching()


def test_each_rule_fires_on_what_it_is_for_and_on_nothing_else(tmp_path: Path) -> None:
    """The units of the rules pass; and every rule has some, because those of a rule that never fires fail."""
    assert promtool("check", "rules", str(RULES)) == ""
    assert promtool("test", "rules", str(UNITS)) == ""
    (tmp_path / UNITS.name).write_text(UNITS.read_text())
    never = re.sub(r"^        expr: .+$", "        expr: vector(1) > 2", RULES.read_text(), flags=re.MULTILINE)
    (tmp_path / RULES.name).write_text(never)
    failed = set(re.findall(r"alertname:\s*(\w+)", promtool("test", "rules", str(tmp_path / UNITS.name))))
    assert failed == set(re.findall(r"alert: (\w+)", never))


@pytest.mark.long
def test_alerts_of_groups_fire_in_a_real_prometheus(tmp_path: Path) -> None:
    """A record is rejected, and its worker leaves while there is another record."""
    rules = tmp_path / "rules.yml"
    rules.write_text(re.sub(r"^        for: .+$", "        for: 0s", RULES.read_text(), flags=re.MULTILINE))
    with Cluster(1, metrics=True, timing=PATIENT) as cluster:
        client = cluster.client()
        client.admin.create_topic("emails", partitions=1, replication_factor=1)
        with client.worker("emails", group="mailer") as worker:
            for _ in range(2):
                client.send("emails", b"x")
            with Prometheus(tmp_path, [cluster.metrics_address(1)], rules=rules) as prometheus:
                prometheus.until('tinymq_group_buried_records_total{group="mailer"}', [0])
                prometheus.until('tinymq_group_workers{group="mailer"}', [1])
                prometheus.until('absent(ALERTS{alertname=~"Tinymq.*"})', [1])
                (job,) = worker.poll(30.0, 1)
                job.reject("no such address")
                worker.flush()
                ((labels, _),) = prometheus.until('ALERTS{alertname="TinymqDeadLetters", alertstate="firing"}')
                assert labels["group"] == "mailer"
                prometheus.until('absent(ALERTS{alertname="TinymqGroupWithoutMembers"})', [1])
                worker.close()
                ((labels, _),) = prometheus.until('ALERTS{alertname="TinymqGroupWithoutMembers", alertstate="firing"}')
                assert labels["group"] == "mailer"


def test_a_missing_tool_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError) as missing:
        find("no-such-tool")
    assert MISSING.format("no-such-tool") in str(missing.value)
    (script,) = re.findall(r"sh (\S+)", MISSING)
    assert (ROOT / script).is_file()
    assert script in (ROOT / "Makefile").read_text()
