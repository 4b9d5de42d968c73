"""A scenario as a text: prose and comments that stay, commands, and the record below each, which is compared."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.raft.scripted import Scenario


def replayed(text: str) -> str:
    """The text with its records as they are now. Raises what a command that cannot be carried out raises."""
    return asyncio.run(_replay(text))


async def _replay(text: str) -> str:
    scenario = Scenario()
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("  "):
            continue  # of the record that was
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
