"""No text of a broker, a record, a log or a file reaches a terminal with its control characters, by any command."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import logging
import os
import pty
import sys
import unicodedata
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cyclopts import App

from tests.cli.hostile_broker import FORGED, HOSTILE, TOPIC, Answers, HostileBroker
from tinymq.cli.commands import app
from tinymq.cli.common import broker_log
from tinymq.cli.common.escapes import HOSTILE as CATEGORIES
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import main, run
from tinymq.dev import dev_directory
from tinymq.testing import Cluster

ROOT = Path(__file__).resolve().parents[2]
# The arguments of each command, without its servers.
ASKING: dict[str, list[str]] = {
    "topic create": [TOPIC],
    "topic list": [],
    "topic describe": [TOPIC],
    "topic alter": [TOPIC, "--set", "sync=always"],
    "topic trim": [TOPIC, "0", "--before-offset", "1"],
    "topic add-partition": [TOPIC],
    "topic delete-partition": [TOPIC, "0", "--yes"],
    "topic delete": [TOPIC, "--yes"],
    "produce": [TOPIC],
    "consume": [TOPIC, "-e"],
    "schedule list": [TOPIC],
    "schedule cancel": [TOPIC, "0", "17"],
    "transaction list": [],
    "transaction describe": ["x"],
    "transaction abort": ["x", "--yes"],
    "transaction resolve": ["1-0-1", "--abort", "--yes"],
    "half list": [],
    "half describe": ["1-0-1"],
    "half commit": ["1-0-1", "--yes"],
    "half rollback": ["1-0-1", "--yes"],
    "channel list": [TOPIC],
    "channel seek": [TOPIC, "c", "--to", "end"],
    "channel delete": [TOPIC, "c"],
    "group create": ["g", TOPIC],
    "group list": [],
    "group describe": ["g"],
    "group lag": ["g"],
    "group members": ["g"],
    "group seek": ["g", "--to", "end"],
    "group alter": ["g", "--set", "a=b"],
    "group pause": ["g"],
    "group resume": ["g"],
    "group purge": ["g"],
    "group delete": ["g"],
    "dlq list": [TOPIC],
    "dlq show": [TOPIC, "0", "0"],
    "dlq replay": [TOPIC, "0", "0", "json:dumps"],
    "dlq redrive": [TOPIC, "0", "0"],
    "dlq purge": [TOPIC, "--yes"],
    "why": [TOPIC, "0", "0"],
    "worker": [TOPIC, "-g", "g", "--exec", "cat", "--idle", "1"],
    "queue consumer show": [TOPIC],
    "queue consumer unset": [TOPIC],
    "queue push": [TOPIC, "v"],
    "queue poll": [TOPIC],
    "queue peek": [TOPIC],
    "queue get": [TOPIC, "0"],
    "queue size": [TOPIC],
    "hold list": [TOPIC],
    "hold create": [TOPIC, "0"],
    "hold renew": [TOPIC, "0", "69"],
    "hold release": [TOPIC, "0", "69"],
    "scan list": [],
    "cluster feature-level show": [],
    "cluster feature-level hold": [],
    "cluster feature-level release": [],
    "scan describe": ["s"],
    "user list": [],
    "user create": ["u"],
    "user token": ["u"],
    "user revoke": ["u", "--all"],
    "user add-role": ["u", "r"],
    "user remove-role": ["u", "r"],
    "user delete": ["u"],
    "acl grant": ["u", "read", "topic:t"],
    "acl revoke": ["u", "read", "topic:t"],
    "acl list": [],
    "acl test": ["u", "read", "topic:t"],
    "quota set": ["u", "--topics", "5"],
    "quota list": [],
    "quota delete": ["u"],
    "auth enable": [],
    "auth disable": [],
    "auth administrator": ["u", "--secret-file", "secret"],
    "whoami": [],
    "cluster init": ["--secret-file", "secret"],
    "cluster recover": ["--secret-file", "secret"],
    "cluster transfer-leader": [TOPIC, "0"],
    "cluster status": [],
    "bench produce": [TOPIC, "-n", "1"],
    "bench consume": [TOPIC, "-n", "1"],
    "bench e2e": [TOPIC, "-n", "1"],
}
LOCAL = {
    "dev up", "dev add", "dev kill", "dev stop", "dev start", "dev down", "dev status", "dev logs", "log dump",
    "doctor", "context list", "context set", "context use", "context delete", "completion",
    "cert ca", "cert broker", "cert user", "outbox create", "outbox status", "outbox resolve",
}  # fmt: skip
NO_JSON = {
    "consume",
    "queue poll",
    "queue peek",
    "queue get",
}  # these print one line of JSON per record, and this topic has no record
ASKS_METADATA_ONLY = {"topic list", "cluster status"}
"""These succeed with every answer: the hostile broker always answers Metadata well, so that other commands find it."""
SERVES = {"broker", "outbox relay"}


@pytest.fixture(scope="module")
def broker() -> Iterator[HostileBroker]:
    with HostileBroker() as running:
        yield running


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret").touch(0o600)
    Path("secret").write_bytes(b"s" * 32)


def commands(within: App, path: tuple[str, ...] = ()) -> Iterator[str]:
    names = [name for name in within if not name.startswith("-")]
    if not names:
        yield " ".join(path)
    for name in names:
        yield from commands(within[name], (*path, name))


def hostile(text: str) -> set[str]:
    """Return the characters of `text` that no terminal may get."""
    return {c for c in text if unicodedata.category(c) in CATEGORIES and c != "\n"}


def check(text: str) -> None:
    assert hostile(text) == set()
    assert not [line for line in text.splitlines() if line.strip() == FORGED]


def test_every_command_is_tried() -> None:
    assert set(commands(app)) == {*ASKING, *LOCAL, *SERVES}


@pytest.mark.parametrize("answers", Answers)
@pytest.mark.parametrize("command", ASKING)
def test_answers_of_a_broker_are_printed_without_control_characters(
    command: str,
    answers: Answers,
    broker: HostileBroker,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    broker.answers = answers
    where = ["-s", broker.address, "--timeout", "5"]
    for output in ("table", "json") if answers is Answers.DATA else ("table",):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"line\n")))
        code = run([*command.split(), *ASKING[command], *where, "-o", output])
        out, err = capfd.readouterr()
        check(out)
        check(err)
        if answers is not Answers.DATA and command not in ASKS_METADATA_ONLY:
            assert code != Exit.OK
            assert r"\x1b[2J" in err, "the error's own text"
        if output == "json" and out and command not in NO_JSON:
            json.loads(out)
    if command in ASKS_METADATA_ONLY | {"channel list", "scan list", "queue consumer show"}:
        assert answers is not Answers.DATA or r"\u202e" in out


def test_local_files_are_printed_without_control_characters(capfd: pytest.CaptureFixture[str]) -> None:
    folder = dev_directory.create(dev_directory.DEFAULT, 1)
    with open(folder.log(1), "w", newline="") as log:
        log.write(HOSTILE)
    file = folder.path / "cluster.json"
    document = json.loads(file.read_text())
    document["brokers"][0]["address"] = HOSTILE
    file.write_text(json.dumps(document))
    name = HOSTILE.replace("\0", "")
    Path(name).write_bytes(b"no segment")
    runs = [["dev", "status"], ["dev", "status", "-o", "json"], ["dev", "logs"], ["dev", "logs", "1"]]
    runs += [["dev", verb, "1"] for verb in ("kill", "stop")] + [["dev", "add"], ["dev", "down"]]
    runs += [["log", "dump", name], ["topic", "create", HOSTILE], ["topic", HOSTILE], ["dev", "up", "-D", name]]
    printed = ""
    for argv in runs:
        run(argv)
        out, err = capfd.readouterr()
        assert hostile(out) == set()
        check(err)
        printed += out + err
    assert printed.count(r"\x1b[2J") >= len(runs) // 2


def test_a_traceback_is_printed_in_full_without_control_characters(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(argv: list[str]) -> int:
        raise AssertionError(HOSTILE)

    monkeypatch.setattr("tinymq.cli.main._run", broken)
    with pytest.raises(SystemExit) as ended:
        main(["topic", "list"])
    assert ended.value.code == Exit.FAILED
    said = capfd.readouterr().err
    assert hostile(said) == set()
    assert "in broken\n" in said
    assert r"AssertionError: x\x1b[2J" in said


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_brokers_log_has_no_control_characters(log_format: broker_log.LogFormat) -> None:
    event: Any = {"event": HOSTILE, "reason": HOSTILE, "level": "info"}
    for process in broker_log.renderers(log_format):
        event = process(None, "info", event)
    check(event)
    assert "\n" not in event
    assert log_format == "text" or json.loads(event)["reason"] == HOSTILE


def test_the_log_of_libraries_has_no_control_characters() -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        trace = sys.exc_info()
    record = logging.LogRecord(
        name="asyncio", level=logging.ERROR, pathname="", lineno=1, msg=HOSTILE, args=None, exc_info=trace
    )
    assert hostile(broker_log.Formatter(broker_log.LIBRARIES).format(record)) == set()


# ---- records --------------------------------------------------------------------------------------------------------

VALUE = HOSTILE.encode() + b"\x9b\xff tail"


@pytest.fixture(scope="module")
def records() -> Iterator[Cluster]:
    """One hostile record in TOPIC."""
    with Cluster(nodes=1) as cluster:
        client = cluster.client()
        client.admin.create_topic(TOPIC)
        client.send(TOPIC, VALUE, key=VALUE, headers=[(HOSTILE, VALUE)])
        yield cluster


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, argv: list[str]) -> bytes:
    """Return the bytes that the command writes when stdout is a terminal."""
    terminal, end = pty.openpty()
    with os.fdopen(end, "w") as stdout, ThreadPoolExecutor(1) as reader:
        shown = reader.submit(_read_all, terminal)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stdout)
            assert run(argv) == Exit.OK
        stdout.close()
        return shown.result(20).replace(b"\r\n", b"\n")  # the terminal driver turns a newline into \r\n


def _read_all(terminal: int) -> bytes:
    read = b""
    with os.fdopen(terminal, "rb", buffering=0) as screen, contextlib.suppress(OSError):  # EIO: the other end closed
        while piece := screen.read(4096):
            read += piece
    return read


READS = [
    ["consume", TOPIC, "-n", "1"],
    ["queue", "peek", TOPIC],
    ["queue", "get", TOPIC, "0"],
    ["queue", "poll", TOPIC],
]


@pytest.mark.parametrize("argv", READS, ids=lambda argv: " ".join(argv[:2]))
def test_records_are_escaped_only_on_a_terminal(
    argv: list[str], records: Cluster, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setenv("TINYMQ_SERVERS", records.servers)
    argv = [*argv, "-f", r"\e%k %v %h\n".replace(r"\e", r"\x1b")] if argv[1] == "poll" else [*argv, "-f", r"%k %v %h\n"]
    if argv[1] != "poll":  # poll takes the record
        shown = on_a_terminal(monkeypatch, argv).decode()
        assert hostile(shown) == {"\t"}
        assert shown.count("\n") == 1
        assert shown.count(r"\x1b[2J") == 4
        assert r"\xff tail" in shown
        assert VALUE in on_a_terminal(monkeypatch, [*argv, "--raw"]).replace(b"\r\n", b"\n")
    capfdbinary.readouterr()
    assert run(argv) == Exit.OK
    expected = VALUE + b" " + VALUE + b" " + HOSTILE.encode() + b"=" + VALUE + b"\n"
    assert capfdbinary.readouterr().out.removeprefix(b"\x1b") == expected


def test_records_as_json_have_no_control_characters(
    records: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TINYMQ_SERVERS", records.servers)
    records.client().send(TOPIC, HOSTILE.encode() + "é".encode())
    assert run(["consume", TOPIC, "-n", "2", "-o", "json"]) == Exit.OK
    out = capfd.readouterr().out
    check(out)
    assert [json.loads(line).get("value") for line in out.splitlines()] == [None, HOSTILE + "é"]
    assert "é" in out, "a text field stays text"


def test_only_one_module_writes_to_stdout_and_stderr() -> None:
    found = []
    for path in sorted((ROOT / "tinymq" / "cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            printed = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            stream = isinstance(node, ast.Attribute) and node.attr in ("stdout", "stderr", "__stdout__", "__stderr__")
            if (printed or (stream and ast.unparse(node).startswith("sys."))) and path.name != "output.py":
                found.append(f"{path.name}:{node.lineno}")
    assert found == []
