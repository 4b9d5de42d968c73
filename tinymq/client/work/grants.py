"""Grants and settlements as values, and their messages: neighbouring grants travel as one run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from tinymq.proto import tinymq_pb2 as pb

RUN_MAX = 10_000  # of records in a GrantRun, and of runs in a Grants


class Verb(IntEnum):
    """A worker's report on a grant. The numbers are those of WorkSettle.Verb."""

    START = 1
    ACK = 2
    NACK = 3
    REJECT = 4
    EXTEND = 5
    RELEASE = 6


class Grant(NamedTuple):
    """One record, leased to this worker. The order of grants of one record is that of (term, number)."""

    history: int
    generation: int
    offset: int
    term: int
    number: int
    delivery: int


def read_grants(grants: pb.Grants) -> Iterator[Grant]:
    """The grants of a message, in its order."""
    history, generation = grants.history, grants.generation
    for run in grants.runs:
        offset, number, term, delivery = run.offset, run.number, run.term, run.delivery
        for n in range(min(run.count, RUN_MAX)):
            yield Grant(history, generation, offset + n, term, number + n, delivery)


def write_grants(grants: Iterable[Grant]) -> list[pb.Grants]:
    """The messages that name these grants, with as few runs as possible."""
    messages: list[pb.Grants] = []
    message: pb.Grants | None = None
    run: pb.GrantRun | None = None
    before: Grant | None = None
    for grant in sorted(grants):
        if message is None or (message.history, message.generation) != grant[:2] or len(message.runs) >= RUN_MAX:
            message = pb.Grants(history=grant.history, generation=grant.generation)
            messages.append(message)
            run = None
        if run is not None and before is not None and run.count < RUN_MAX and _follows(before, grant):
            run.count += 1
        else:
            message.runs.add(
                offset=grant.offset, count=1, term=grant.term, number=grant.number, delivery=grant.delivery
            )
            run = message.runs[-1]
        before = grant
    return messages


def _follows(before: Grant, grant: Grant) -> bool:
    return (
        grant.offset == before.offset + 1
        and grant.number == before.number + 1
        and grant.term == before.term
        and grant.delivery == before.delivery
    )
