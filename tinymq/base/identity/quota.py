"""The bounds on one user's use of a cluster, as a value that brokers, clients and the command line share. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from tinymq.base.errors import InvalidRequest

DEFAULT_NAME = "*"  # of the quota of every user, as far as a user has none of its own
BOUND_MAX = 1 << 50
PRODUCER_IDS_PER_H = 1000  # unless a quota says otherwise


@dataclass(frozen=True, slots=True)
class Quota:
    """The bounds of one user. None: this quota has none."""

    produce_bytes_per_s: int | None = None  # to one broker
    fetch_bytes_per_s: int | None = None  # from one broker
    requests_per_s: int | None = None  # to one broker: calls, batches and answers to fetches
    connections: int | None = None  # to one broker: streams, each of which is a connection of the stream port
    topics: int | None = None  # that the user has made, in the whole cluster; 0: it may make none
    partitions: int | None = None  # of all those topics together
    groups: int | None = None  # as `topics`
    producer_ids_per_h: int | None = None  # that are new to a partition

    def bounds(self) -> dict[str, int]:
        """The bounds that there are, by name."""
        found = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: bound for name, bound in found if bound is not None}

    def changed(self, bounds: Mapping[str, int | None]) -> Quota:
        """This quota with some bounds set, or removed by None. Raises InvalidRequest."""
        for name, bound in bounds.items():
            if name not in NAMES:
                raise InvalidRequest(f"{name[:100]!r} is no bound of a quota", hint=f"one of {', '.join(NAMES)}")
            least = 0 if name in COUNTS else 1
            if bound is not None and not least <= bound <= BOUND_MAX:
                raise InvalidRequest(f"{name}={bound}", hint=f"at least {least}, and at most {BOUND_MAX}")
        return replace(self, **bounds)

    def over(self, default: Quota) -> Quota:
        """This quota, and what it leaves open as `default` has it."""
        return replace(default, **self.bounds())


NAMES = tuple(f.name for f in fields(Quota))
COUNTS = ("topics", "partitions", "groups")
NONE = Quota()
