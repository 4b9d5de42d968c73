"""The legend of the transcripts (`scenarios/README.md`) has every word that occurs in them, and no other.

A word is what stands between commas, colons and semicolons, with numbers, records, identities and names taken out.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.raft.scripted import Scenario
from tests.raft.scripted_words import KIND

FOLDER = Path(__file__).parent / "scenarios"
TRANSCRIPTS = [line for path in sorted(FOLDER.glob("*.txt")) for line in path.read_text().splitlines()]
GIVEN = [line[2:] for line in TRANSCRIPTS if line.startswith("> ")]
COMMANDS = [part.split() for line in GIVEN for part in line.removeprefix("quietly ").split(";")]
RECORDS, _, LANGUAGE = (FOLDER / "README.md").read_text().partition("\n## Commands\n")
ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)

IDENTITY = re.compile(r"nobody for N|N'?(?:\+N)?")
TAKEN_OUT = [
    (r"\d+", "N"),
    (r"'+", "'"),
    (r"is quarantined: .*", "is quarantined: WHY"),
    (r"; (…|groups/.*)$", "; WHY"),
    (r"^(?!lost)\w+: N->N", "NAME: N->N"),
    (r"refuses \w+:", "refuses RECORD:"),
    (r"(?<!away )N/tN (?!NOOP|CONFIG)\w+", "N/tN RECORD"),
    (r"(N->N|N appends) ", r"\1: "),
]
LISTED = re.compile(r"(?<=CONFIG)\([^)]*\)|(?<=has the members ).*|(?<=is back as )[^:]*")


def _words(line: str) -> set[str]:
    line = line.strip()
    for what, name in TAKEN_OUT:
        line = re.sub(what, name, line)
    identities = {found for listed in LISTED.findall(line) for found in IDENTITY.findall(listed)}
    return identities | set(re.split("[,;:] ", LISTED.sub("…", line)))


def test_the_words_of_the_transcripts_are_those_of_the_legend() -> None:
    used = {word: line for line in TRANSCRIPTS if line.startswith("  ") for word in _words(line)}
    explained = {word: example for example in ROW.findall(RECORDS) for word in _words(example)}
    assert not {word: line for word, line in used.items() if word not in explained}, "not in scenarios/README.md"
    assert not {word: example for word, example in explained.items() if word not in used}, "in no transcript"


def test_the_commands_are_those_of_the_legend() -> None:
    there = {name.removeprefix("do_").replace("_", "-") for name in dir(Scenario) if name.startswith("do_")}
    explained = [form.split()[0] for form in ROW.findall(LANGUAGE)]
    assert sorted(explained) == sorted({*there, "quietly"})
    assert {command[0] for command in COMMANDS} == there
    assert any(line.startswith("quietly ") for line in GIVEN)


def test_the_options_of_commands_are_those_of_the_legend() -> None:
    explained = {form.split()[0]: set(re.findall(r"(\w+)=", form)) for form in ROW.findall(LANGUAGE)}
    used = {(name, word.partition("=")[0]) for name, *words in COMMANDS for word in words if "=" in word}
    of_messages = {
        (name, option) for name, option in used if "FIELD" in explained[name] and option not in explained[name]
    }
    assert of_messages
    assert used - of_messages == {
        (name, option) for name in explained for option in explained[name] if option != "FIELD"
    }


def test_the_kinds_of_messages_are_those_of_the_legend() -> None:
    explained = {word.split()[0] for example in ROW.findall(RECORDS) for word in _words(example)}
    assert {*KIND.values(), "PreVote", "RequestVote", "Request", "Reply"} <= explained
