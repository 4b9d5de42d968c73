"""A scenario as text: prose and comments that stay, commands, and below each command the record, which is compared."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.raft.scripted import Scenario


def replayed(text: str) -> str:
    """Return the text with the present records. Raises the error of a command that cannot run."""
    return asyncio.run(_replay(text))


async def _replay(text: str) -> str:
    scenario = Scenario()
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("  "):
            continue  # lines of the old record
        lines.append(line)
        if line.startswith("> "):
            try:
                record = await scenario.do(line[2:])
            except Exception as error:
                raise AssertionError(f"line {number}, {line!r}: {error!r}; before it:\n" + "\n".join(lines)) from error
            lines += [f"  {told}" for told in record]
    await scenario.close()
    return "\n".join(lines) + "\n"


def commands(path: Path) -> list[str]:
    return [line[2:] for line in path.read_text().splitlines() if line.startswith("> ")]
