"""Scenarios that a person can read, held to what the code does: see `scripted.py` for their language.

`pytest tests/raft/test_scenarios.py --rewrite` writes the records anew; the difference is then to be read and judged.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.raft.transcript import replayed

FOLDER = Path(__file__).parent / "scenarios"
FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=[p.stem for p in FILES])
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    now = replayed(text)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(now)
    else:
        assert now == text


@pytest.mark.parametrize("path", FILES, ids=[p.stem for p in FILES])
def test_each_scenario_says_first_what_it_shows(path: Path) -> None:
    prose, _, rest = path.read_text().partition("\n\n")
    assert len(prose) > 150, "a paragraph, please"
    assert not prose.startswith((">", "#"))
    assert "> " in rest
