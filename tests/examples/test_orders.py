"""The order service of the examples: each order has one mail, but for the one that becomes a dead letter."""

from __future__ import annotations

from examples.orders import __main__ as service
from tinymq.testing import Cluster


def test_every_order_is_settled_and_shown() -> None:
    with Cluster(nodes=1) as cluster:
        told = service.main(cluster.servers)
    assert told.startswith("ok: 40 mails by")
    assert "8 of them at a second delivery; order 40 is a dead letter ('no address' is no address)" in told
