"""docs/reliability.md names every anomaly that can be found, and every fault of the simulator."""

from __future__ import annotations

import re
from pathlib import Path

from tinymq_chaos.checkers import AnomalyKind
from tinymq_chaos.faults import FAULTS, Family, Simulated

PAGE = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()


def test_the_table_of_checkers_names_every_anomaly_once() -> None:
    rows = PAGE.partition("| promise | anomalies |\n|---|---|\n")[2].partition("\n\n")[0]
    told = [found.strip() for row in rows.splitlines() for found in re.split("[,;]", row.strip("|").partition("|")[2])]
    naming = {kind: [words for words in told if re.match(rf"{kind.value}\b", words)] for kind in AnomalyKind}
    assert {kind: words for kind, words in naming.items() if len(words) != 1} == {}


def test_the_table_of_faults_names_every_fault_of_the_simulator_once_beside_its_family() -> None:
    head = "| family | kinds, by their names in `chaos/tinymq_chaos/faults.py` |\n|---|---|\n"
    rows = [row.split("|") for row in PAGE.partition(head)[2].partition("\n\n")[0].splitlines()]
    told = {Family(family.strip()): sorted(re.findall(r"`(\w+)`", kinds)) for _, family, kinds, _ in rows}
    simulated = {name: row.family for name, row in FAULTS.items() if isinstance(row.simulated, Simulated)}
    assert told == {family: sorted(name for name in simulated if simulated[name] is family) for family in told}
    assert set(told) == set(simulated.values())
