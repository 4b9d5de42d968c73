"""The enrichers of the examples: every sale has one invoice, though their processes are killed."""

from __future__ import annotations

import pytest

from examples.enricher import __main__ as example
from tinymq.testing import Cluster


@pytest.mark.parametrize("kills", [1, pytest.param(30, marks=pytest.mark.long)])
def test_every_sale_has_one_invoice(kills: int) -> None:
    with Cluster(nodes=3) as cluster:
        told = example.main(cluster.servers, kills=kills, seed=11)
    count = example.CHUNK * (kills + 1)
    assert told.startswith(f"ok: {count} sales became {count} invoices over ")
    assert told.endswith(f"after {kills} kills (seed 11)")
