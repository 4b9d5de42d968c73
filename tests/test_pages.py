"""The pages are true: rooms, make targets, and every command line of ours that they show."""

from __future__ import annotations

import re
import shlex
import tomllib
from itertools import pairwise
from pathlib import Path

from cyclopts import CycloptsError, MissingArgumentError

from tinymq.cli.commands import app

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *ROOT.glob("*.md"),
    *(page for name in ("docs", "benchmarks", "chaos", "spark", "tests") for page in ROOT.glob(f"{name}/**/*.md")),
]
LINE_LENGTH_MAX = 100
FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
FLAGS = re.DOTALL | re.MULTILINE
TAG = "peer "  # what handshakes hash begins with `tinymq peer`


def _chores() -> set[str]:
    """Targets of the Makefile that `make` lists."""
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _commands() -> set[str]:
    """The arguments of `tinymq` in code blocks and inline code."""
    found = set()
    for page in PAGES:
        text = page.read_text()
        lines = [line for block in FENCED.findall(text) for line in block.splitlines()]
        lines += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", FENCED.sub("", text))]
        parts = [part.strip() for line in lines for part in re.split(r"[;|]|  #", line)]
        found |= {part.removeprefix("tinymq ") for part in parts if part.startswith("tinymq ")}
    return {command for command in found if not command.startswith(TAG)}


def test_the_map_has_every_room() -> None:
    drawn = (ROOT / "ARCHITECTURE.md").read_text().partition("\ntinymq/\n")[2].partition("```")[0]
    first_words = " ".join(re.findall(r"^ {0,2}(\S.*?)  ", drawn, re.MULTILINE)).split()
    named = {word.partition("/")[0] for word in first_words} | set(re.findall(r"; (\w+\.py):", drawn))
    rooms = [path for folder in (ROOT, ROOT / "tinymq") for path in folder.iterdir() if path.name[0] not in "._"]
    with_code = {path.name for path in rooms if path.suffix == ".py" or any(path.glob("**/*.py"))}
    assert named == with_code - {"tinymq"}


def test_the_map_shows_the_order_of_rooms_that_import_linter_holds() -> None:
    """Rooms of one line of a contract do not import each other, or stand side by side: a comma on the map."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    held = {
        contract["containers"][0].removeprefix("tinymq."): " → ".join(
            re.sub(r" [|:] ", ", ", layer) for layer in contract["layers"]
        )
        for contract in contracts
        if contract["type"] == "layers" and contract["containers"][0].startswith("tinymq.")
    }
    shown = re.findall(r"^\| `(\w+)` \| (.+? → .+?) \|$", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    assert dict(shown) == held


def test_the_picture_of_rooms_shows_their_imports() -> None:
    """It has an arrow for each import, except where a longer way along other arrows leads to the same room."""
    picture = re.search(r"^## Rooms.*?^flowchart TD$(.*?)^```", (ROOT / "ARCHITECTURE.md").read_text(), FLAGS)
    assert picture is not None
    steps = [[re.findall(r"\w+", step) for step in line.split("-->")] for line in picture[1].split("\n") if line]
    drawn = {(a, b) for line in steps for above, below in pairwise(line) for a in above for b in below}
    imports = {
        (room.name, imported)
        for room in (ROOT / "tinymq").iterdir()
        for path in room.rglob("*.py")
        for imported in re.findall(r"^ *from tinymq\.(\w+)", path.read_text(), re.MULTILINE)
        if imported != room.name
    }
    ways = set(imports)  # from room to room, by imports of imports, too
    while more := {(a, d) for a, b in ways for c, d in imports if b == c} - ways:
        ways |= more
    assert drawn == imports - {(a, d) for a, b in imports for c, d in ways if b == c}


def test_every_chore_is_on_the_page_for_who_changes_things() -> None:
    shown = re.findall(r"^make ([a-z-]+) ", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(_chores() - {"help"})


def test_the_chores_that_pages_show_are_there() -> None:
    shown = {name for page in PAGES for name in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)}
    assert shown >= {"run", "sim", "mutants"}
    assert shown - _chores() == set()


def test_the_commands_that_pages_show_can_be_given() -> None:
    commands = _commands()
    assert len(commands) > 20
    wrong = {}
    for command in commands:
        try:
            app.parse_args(shlex.split(re.sub(r"[][]", "", command)), exit_on_error=False, print_error=False)
        except MissingArgumentError:
            continue  # it is only named, without its arguments
        except CycloptsError as error:
            wrong[command] = str(error)
    assert wrong == {}


def test_the_models_that_pages_show_are_in_the_code() -> None:
    models = [
        (name, _stripped(lines))
        for page in PAGES
        for name, lines in re.findall(r"^```\w+\n(?:#|//) (\S+/\S+\.\w+)\n(.*?)^```$", page.read_text(), FLAGS)
    ]
    assert len(models) >= 6
    assert [(name, lines) for name, lines in models if lines not in _stripped((ROOT / name).read_text())] == []


def _stripped(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def test_lines_of_pages_fit_a_screen() -> None:
    """Except tables, code, headings, and links that are longer on their own."""
    long = []
    for page in PAGES:
        text = FENCED.sub(lambda block: "\n" * block[0].count("\n"), page.read_text())
        for number, line in enumerate(text.splitlines(), 1):
            words = [word for word in line.split() if "](" not in word and "://" not in word]
            if len(line) > LINE_LENGTH_MAX and not line.lstrip().startswith(("|", "#")) and len(words) > 1:
                long.append(f"{page.relative_to(ROOT)}:{number}: {len(line)} characters")
    assert not long


def test_the_pages_use_a_group_for_one_topic_and_kind() -> None:
    """A reader tries several pages on one cluster, where a group of another topic or kind is refused."""
    use = re.compile(r'(subscribe|worker|consumer)\("([^"]+)", group="([^"]+)"(?:, kind="(\w+)")?')
    uses: dict[str, set[tuple[str, str]]] = {}
    for page in (ROOT / "README.md", *ROOT.glob("docs/*.md")):
        for call, topic, group, kind in use.findall("\n".join(FENCED.findall(page.read_text()))):
            queue = call == "worker" or kind == "queue"
            uses.setdefault(group, set()).add((topic, "queue" if queue else "stream"))
    assert uses["mailer"] == {("emails", "queue")}
    assert {group: used for group, used in uses.items() if len(used) > 1} == {}
