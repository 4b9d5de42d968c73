"""Grants of a queue group's records on the wire: neighbouring grants travel as one run."""

from __future__ import annotations

from collections.abc import Iterable

from tinymq.base.errors import InvalidRequest
from tinymq.broker.groups.lease_values import Era, Grant
from tinymq.proto import tinymq_pb2 as pb

GRANTS_MAX = 10_000  # in one settlement, and held at one partition


def read_grants(packed: Iterable[pb.Grants], *, started: bool) -> list[Grant]:
    """Raises InvalidRequest for more than a worker may hold."""
    found: list[Grant] = []
    for grants in packed:
        era = Era(grants.history, grants.generation)
        for run in grants.runs:
            if not 0 < run.count <= GRANTS_MAX - len(found) or (run.offset | run.number) >> 62:
                raise InvalidRequest(f"a run of {run.count} grants", hint=f"1 to {GRANTS_MAX} grants in one message")
            offset, number, term, delivery = run.offset, run.number, run.term, run.delivery
            found += [Grant(offset + n, term, number + n, delivery, era, started) for n in range(run.count)]
    return found


def write_grants(grants: Iterable[Grant]) -> list[pb.Grants]:
    """Grants as runs, by history and generation."""
    by_era: dict[Era, pb.Grants] = {}
    last: tuple[int, int, int, int] | None = None
    run: pb.GrantRun | None = None
    before: Era | None = None
    for grant in grants:
        offset, term, number, delivery, era, _ = grant
        if run is not None and last == (offset - 1, term, number - 1, delivery) and before == era:
            run.count += 1
        else:
            packed = by_era.get(era)
            if packed is None:
                packed = by_era[era] = pb.Grants(history=era.history, generation=era.generation)
            run = packed.runs.add(offset=offset, count=1, term=term, number=number, delivery=delivery)
        last, before = (offset, term, number, delivery), era
    return list(by_era.values())
