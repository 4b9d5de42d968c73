"""docs/reliability.md names every anomaly that can be found."""

from __future__ import annotations

import re
from pathlib import Path

from tinymq_chaos.checkers import AnomalyKind

PAGE = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()


def test_the_table_of_checkers_names_every_anomaly_once() -> None:
    rows = PAGE.partition("| promise | anomalies |\n|---|---|\n")[2].partition("\n\n")[0]
    told = [found.strip() for row in rows.splitlines() for found in re.split("[,;]", row.strip("|").partition("|")[2])]
    naming = {kind: [words for words in told if re.match(rf"{kind.value}\b", words)] for kind in AnomalyKind}
    assert {kind: words for kind, words in naming.items() if len(words) != 1} == {}
