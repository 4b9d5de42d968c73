"""Exit codes, error messages without tracebacks, and fast help."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tinymq.base.errors import BY_CODE, TinymqError
from tinymq.cli.common import exits
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.cli.verbs.broker import as_environment

PRODUCE_S_MAX = 50  # the timeout is 0.5 s; a producer's default is 60 s
EXITS = {
    "UnknownTopic": Exit.NOT_FOUND,
    "WrongSecret": Exit.DENIED,
    "WrongCluster": Exit.DENIED,
    "BrokerUnreachable": Exit.UNAVAILABLE,
    "DeadlineExceeded": Exit.UNAVAILABLE,
    "OutcomeUnknown": Exit.UNAVAILABLE,
    "InvalidName": Exit.USAGE,
    "InvalidConfig": Exit.USAGE,
    "TopicExists": Exit.FAILED,
    "CorruptData": Exit.FAILED,
    "FolderInUse": Exit.FAILED,
    "PortInUse": Exit.FAILED,
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in an empty directory, where there is no local cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TINYMQ_SERVERS", raising=False)


@pytest.mark.parametrize(("code", "exit_code"), EXITS.items())
def test_exit_codes_of_errors(code: str, exit_code: Exit) -> None:
    assert exits.exit_of(BY_CODE[code]("what")) == exit_code


def test_every_operating_error_has_an_exit_code_and_a_bug_has_none() -> None:
    assert not [kind for kind in (TinymqError, *BY_CODE.values()) if exits.exit_of(kind("what")) is None]
    assert exits.exit_of(AssertionError()) is None
    assert exits.exit_of(FileNotFoundError(2, "No such file", "x")) == Exit.NOT_FOUND


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["dve"], Exit.USAGE, "dev"),
        (["topic", "creat", "x"], Exit.USAGE, "create"),
        (["topic", "create"], Exit.USAGE, "NAME"),
        (["topic", "list", "-o", "xml"], Exit.USAGE, "table"),
        (["topic", "create", "x", "--partitions", "many"], Exit.USAGE, "many"),
        (["topic", "list"], Exit.NOT_FOUND, "TINYMQ_SERVERS"),
        (["topic", "list", "-s", "nonsense"], Exit.USAGE, "nonsense"),
        (["topic", "list", "-s", "http://localhost:7070"], Exit.USAGE, "without http://"),
        (["topic", "list", "-s", "h:1", "--timeout", "nan"], Exit.USAGE, "above 0"),
        (["dev", "status"], Exit.NOT_FOUND, "tinymq dev up"),
        (["dev", "up", "-n", "2"], Exit.USAGE, "1, 3 or 5"),
        (["dev", "kill", "1"], Exit.NOT_FOUND, "tinymq dev up"),
        (["topic", "create", "x", "--set", "retention_ms=5y"], Exit.USAGE, "7d"),
        (["topic", "alter", "x", "--set", "storrage=disk"], Exit.USAGE, "storage"),
        (["topic", "trim", "x", "0"], Exit.USAGE, "--before"),
        (["channel", "seek", "x", "c", "--to", "soon"], Exit.USAGE, "soon"),
        (["queue", "poll", "x/y"], Exit.USAGE, "orders/3"),
        (["consume", "x", "--offset", "soon"], Exit.USAGE, "soon"),
        (["consume", "x", "-f", "%z"], Exit.USAGE, "%z"),
        (["consume", "x", "-f", "%v", "-o", "json"], Exit.USAGE, "exclude"),
        (["consume", "x", "-n", "-1"], Exit.USAGE, "0 or more"),
        (["produce", "x", "-H", "nothing"], Exit.USAGE, "name=value"),
        (["produce", "x", "-k", "a", "-K", ":"], Exit.USAGE, "exclude"),
        (["produce", "x", "-K", ""], Exit.USAGE, "empty"),
        (["produce", "x", "-p", "0", "--partitioner", "sticky"], Exit.USAGE, "exclude"),
        (["produce", "x", "-K", r"\q"], Exit.USAGE, r"\xNN"),
        (["produce", "x", "--key-optional"], Exit.USAGE, "without --key-separator"),
        (["consume", "x", "--raw", "-o", "json"], Exit.USAGE, "exclude"),
        (["broker", "--config", "missing.toml"], Exit.USAGE, "missing.toml"),
        (["log", "dump", "missing"], Exit.NOT_FOUND, "no such file"),
        (["log", "dump", "."], Exit.USAGE, "not a file"),
        (["log", "dump", "/dev/null"], Exit.USAGE, "not a file"),
        (["cluster", "init", "--secret-file", "missing", "-s", "127.0.0.1:1"], Exit.USAGE, "missing"),
    ],
)
def test_errors_are_printed_on_stderr(
    argv: list[str], code: Exit, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(argv) == code
    out, err = capfd.readouterr()
    assert says in err
    assert "Traceback" not in err
    assert out == ""


def test_a_call_to_an_unreachable_broker_is_unavailable(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "list", "-s", "127.0.0.1:1", "--timeout", "0.5"]) == Exit.UNAVAILABLE
    assert "127.0.0.1:1" in capfd.readouterr().err


def test_produce_ends_at_its_timeout_and_counts_only_sent_records(
    capfd: pytest.CaptureFixture[str],
) -> None:
    Path("lines").write_bytes(b"one\n")
    began = time.monotonic()
    assert run(["produce", "x", "lines", "-s", "127.0.0.1:1", "--timeout", "0.5"]) == Exit.UNAVAILABLE
    assert time.monotonic() - began < PRODUCE_S_MAX
    err = capfd.readouterr().err
    assert err.startswith("error: ")
    assert "acknowledged" not in err
    assert "127.0.0.1:1" in err


def test_a_stopped_cluster_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    from tinymq.dev import dev_directory

    folder = dev_directory.create(dev_directory.DEFAULT, 3)
    assert run(["dev", "status", "-o", "json"]) == Exit.OK
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "brokers": [
            {"id": b.id, "pid": None, "address": b.address, "metrics": b.metrics_address, "state": "stopped"}
            for b in folder.brokers
        ]
    }
    assert run(["dev", "status"]) == Exit.OK
    assert "\x1b" not in capsys.readouterr().out


def test_help_of_every_verb_imports_neither_grpc_nor_arrow() -> None:
    """Run all verbs in one process: an import shows at the first verb that causes it."""
    verbs = [
        [],
        *([verb] for verb in ["dev", "topic", "produce", "consume", "channel", "queue", "cluster", "log", "broker"]),
    ]
    program = f"""
import sys
from tinymq.cli.main import run
for verb in {verbs!r}:
    assert run([*verb, "--help"]) == 0, verb
    loaded = {{'grpc', 'pyarrow', 'pysyncobj', 'google.protobuf', 'pydantic', 'structlog'}} & set(sys.modules)
    assert not loaded, (verb, loaded)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_brokers_options_override_its_environment() -> None:
    flags = {"BROKER_ID": 2, "DATA_DIR": Path("d"), "LISTEN": None, "VOTERS": ["1@a:1", "2@b:2"]}
    assert as_environment(flags, "TINYMQ_") == {
        "TINYMQ_BROKER_ID": "2",
        "TINYMQ_DATA_DIR": "d",
        "TINYMQ_VOTERS": '["1@a:1", "2@b:2"]',
    }
