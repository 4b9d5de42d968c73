"""A real cluster inside the calling process, for tests of applications.

    from tinymq.testing import Cluster

    with Cluster(nodes=3) as cluster, cluster.client() as mq:
        ...

`Cluster` is imported on first use, because the other modules of this package need no brokers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinymq.testing.cluster import Cluster

__all__ = ["Cluster"]


def __getattr__(name: str) -> Any:
    if name == "Cluster":
        from tinymq.testing.cluster import Cluster

        return Cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
