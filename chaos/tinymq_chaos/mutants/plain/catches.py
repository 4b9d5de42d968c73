"""How soon plain runs catch each mutant: the data beside the page that shows it (README.md of the folder above).

A plain run has the plan that `make sim` without options draws from its seed, so it knows nothing of the mutant.

    make mutants PLAIN=1 KEEP=1                     measure all mutants, and keep the results
    python -m tinymq_chaos.mutants.plain.catches    write the page again
"""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tinymq_chaos.mutants.mutant import MUTANTS, Mutant

NAME = "catches.json"
PATH = Path(__file__).with_name(NAME)
PAGE = Path(__file__).parents[1].joinpath("README.md")
SEEDS_MAX = 200
HEAD = "| mutant | plain runs | caught by |\n|---|---|---|\n"

NOT_IN_PLAIN_RUNS: Mapping[str, str] = {
    "levels-rise-over-older-members": "every broker of a simulated run is of the same build",
    "leaders-propose-what-members-do-not-know": "every broker of a simulated run is of the same build",
    "older-builds-are-let-in": "every broker of a simulated run is of the same build",
    "clients-are-never-forgotten": "no run has so many clients",
}
"""Mutants of what no plain run has, and why."""


@dataclass(frozen=True, slots=True)
class Catch:
    """`by` is the first anomaly, after so many seeds; "": these seeds did not catch the mutant."""

    seeds: int
    virtual_s: float
    by: str

    def then(self, seeds: int, virtual_s: float, by: str) -> Catch:
        """Return the result after so many more seeds."""
        return Catch(self.seeds + seeds, self.virtual_s + virtual_s, by)


def load(path: Path = PATH) -> dict[str, Catch]:
    """Return the kept results by the mutant's name."""
    return {name: Catch(**values) for name, values in json.loads(path.read_text()).items()} if path.exists() else {}


def keep(name: str, catch: Catch, path: Path = PATH) -> None:
    """Keep a result. Several processes may do so at the same time."""
    with PAGE.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = load(path) | {name: Catch(catch.seeds, round(catch.virtual_s), catch.by.partition(":")[0])}
        path.write_text(json.dumps({each: asdict(known[each]) for each in sorted(known)}, indent=1) + "\n")


def rows(known: Mapping[str, Catch], mutants: Mapping[str, Mutant]) -> list[str]:
    """Return a row of the page for each mutant."""
    return [f"| {name} | {_seeds(name, known)} | {_by(name, known, mutant)} |" for name, mutant in mutants.items()]


def _seeds(name: str, known: Mapping[str, Catch]) -> str:
    if name in NOT_IN_PLAIN_RUNS:
        return "not in plain runs"
    if name not in known:
        return "not measured"
    catch = known[name]
    return f"{catch.seeds} seed{'s' if catch.seeds > 1 else ''}" if catch.by else f"none in {catch.seeds} seeds"


def _by(name: str, known: Mapping[str, Catch], mutant: Mutant) -> str:
    catch = known.get(name)
    if catch is not None and catch.by:
        return catch.by
    return NOT_IN_PLAIN_RUNS.get(name) or ("only by its test" if mutant.test else "only by its own plan")


def main() -> int:
    text, table = PAGE.read_text(), HEAD + "\n".join(rows(load(), MUTANTS)) + "\n"
    before, head, after = text.partition(HEAD)
    assert head, f"{PAGE} has no table"
    PAGE.write_text(before + table + after.partition("\n\n")[1] + after.partition("\n\n")[2])
    return 0


if __name__ == "__main__":
    sys.exit(main())
