"""A run over time, in equal pieces: counts and latencies of each. The number of pieces is bounded."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tinymq_chaos.history import Outcome
from tinymq_chaos.real.report.figures import Findings
from tinymq_chaos.real.report.quantiles import Quantiler

PIECES_MAX = 1_200
PIECES_MIN = 60  # also of runs with few calls
CALLS = 20  # in one piece, on average: quantiles of fewer calls mean nothing
WIDTHS_S = (0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Piece i is [i * width_s, (i + 1) * width_s) from the beginning of the run."""

    width_s: float
    lasted_s: float
    acknowledged: Sequence[float]  # records per second, by the time of the acknowledgement
    p50_ms: Sequence[float | None]  # of sends that ended ok, by their begin; None: no such send
    p99_ms: Sequence[float | None]
    ok: Sequence[int]  # calls of all kinds, by their end
    failed: Sequence[int]
    unknown: Sequence[int]
    pending: Sequence[int]  # calls that never ended, by their deadline or the end of the run

    @property
    def pieces(self) -> int:
        return len(self.ok)


def width_of(findings: Findings) -> float:
    """Return the width of a piece in seconds, as narrow as the run's length and its number of calls allow."""
    most = max(PIECES_MIN, min(PIECES_MAX, len(findings.run.history.calls) // CALLS))
    return next((width for width in WIDTHS_S if findings.lasted_s / width <= most), findings.lasted_s / most)


def timeline(findings: Findings, width_s: float | None = None) -> Timeline:
    """Divide a run into pieces of `width_s` seconds, by default those of `width_of`."""
    lasted_s = findings.lasted_s
    width_s = width_s or width_of(findings)
    pieces = max(1, math.ceil(lasted_s / width_s))

    def piece(at_s: float) -> int:
        return min(max(0, int((at_s - findings.begin_s) / width_s)), pieces - 1)

    records = [0] * pieces
    counts = {outcome: [0] * pieces for outcome in Outcome}
    took_s: dict[int, list[float]] = defaultdict(list)
    for call in findings.run.history.calls:
        counts[call.outcome][piece(call.deadline_s if call.ended_s is None else call.ended_s)] += 1
    for send in findings.acknowledged:
        assert send.ended_s is not None, "acknowledged"
        records[piece(send.ended_s)] += len(send.args["records"])
        took_s[piece(send.invoked_s)].append(send.ended_s - send.invoked_s)
    quantiler = Quantiler()
    quantiles = [quantiler.of(took_s[i]) if i in took_s else None for i in range(pieces)]
    return Timeline(
        width_s,
        lasted_s,
        [round(count / width_s, 3) for count in records],
        p50_ms=[None if q is None else q.p50_ms for q in quantiles],
        p99_ms=[None if q is None else q.p99_ms for q in quantiles],
        ok=counts[Outcome.OK],
        failed=counts[Outcome.FAILED],
        unknown=counts[Outcome.UNKNOWN],
        pending=counts[Outcome.PENDING],
    )
