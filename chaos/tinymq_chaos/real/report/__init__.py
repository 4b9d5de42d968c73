"""Reports of runs: a summary for programs and a page for people, both made from a run's folder alone.

    run_folder.py  the content of the folder         effects.py    the effect of each fault, as clients saw it
    figures.py     summary.json                      timeline.py   the run in equal pieces of time
    evidence.py    the evidence of an anomaly        compare.py    two runs beside each other
    page.py        report.html; its parts: over_time.py, tables.py, lanes.py, elements.py, page.css, page.js

This room writes its plots as SVG and HTML, and uses no plotting library. Bars of faults, bars of leaders and curves
have to share one scale. The page has to say the same in print, without a script, and to a program that parses it. The
style sheet then chooses light or dark.
"""

from __future__ import annotations

import json
from pathlib import Path

from tinymq_chaos.real.report.compare import comparison
from tinymq_chaos.real.report.figures import Findings, summary
from tinymq_chaos.real.report.page import headline, report
from tinymq_chaos.real.report.run_folder import BadFolder, DamagedRun, FinishedRun, NoRun, read_run

REPORT = "report.html"
SUMMARY = "summary.json"
COMPARISON = "comparison.html"


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page (to `out`, else into the folder) and the folder's summary.json; return the page's path.

    Blocks for some seconds per 100,000 calls. Raises BadFolder, OSError.
    """
    return _write(Findings(read_run(folder)), out or folder / REPORT)


def write_comparison(folder: Path, against: Path, out: Path | None = None) -> Path:
    """Write a page that compares the run in `folder` with the earlier run in `against`; return the page's path.

    Raises BadFolder, OSError.
    """
    before, after = Findings(read_run(against)), Findings(read_run(folder))
    path = out or folder / COMPARISON
    path.write_text(comparison(before, after), encoding="utf-8")
    return path


def _write(findings: Findings, path: Path) -> Path:
    path.write_text(report(findings), encoding="utf-8")
    text = json.dumps(summary(findings), indent=2)
    (findings.run.folder / SUMMARY).write_text(text + "\n", encoding="utf-8")
    return path


__all__ = [
    "BadFolder",
    "DamagedRun",
    "Findings",
    "FinishedRun",
    "NoRun",
    "comparison",
    "headline",
    "read_run",
    "report",
    "summary",
    "write_comparison",
    "write_report",
]  # fmt: skip
