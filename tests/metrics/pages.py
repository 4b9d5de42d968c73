"""Requests of a broker's /metrics and /status, read with the Prometheus client's own parsers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tinymq.testing import Cluster

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
TIMEOUT_S = 10.0

Families = dict[str, Metric]


def get(address: str, path: str, accept: str = "") -> tuple[int, str, str]:
    """Status, content type, and the body as text."""
    request = urllib.request.Request(f"http://{address}{path}", headers={"accept": accept} if accept else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return reply.status, reply.headers["content-type"], reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["content-type"], error.read().decode()


def parsed(page: str, content_type: str = "text/plain") -> Families:
    """By name; a counter's without `_total`."""
    parse = parse_openmetrics if content_type.startswith("application/openmetrics-text") else parse_text
    return {family.name: family for family in parse(page)}


def scrape(cluster: Cluster, broker_id: int) -> Families:
    """A broker's page."""
    status, content_type, page = get(cluster.metrics_address(broker_id), "/metrics")
    assert status == 200
    return parsed(page, content_type)


def status_of(cluster: Cluster, broker_id: int) -> dict[str, Any]:
    """Return the metrics page of a running broker."""
    status, content_type, body = get(cluster.metrics_address(broker_id), "/status")
    assert (status, content_type) == (200, "application/json; charset=utf-8")
    document: dict[str, Any] = json.loads(body)
    return document


def values(families: Families, name: str, **labels: str) -> list[float]:
    """Return the values of all samples with this name and these labels; they may have other labels."""
    return [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


def value(families: Families, name: str, **labels: str) -> float:
    """Return the value of the only sample with this name and these labels; it may have other labels."""
    found = values(families, name, **labels)
    assert len(found) == 1, f"{len(found)} samples of {name} {labels}"
    return float(found[0])
