"""The verbs user, acl, auth and whoami, as an owner uses them on a new cluster. No token is ever an argument."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.client.common import contexts
from tinymq.testing import Cluster
from tinymq.testing.cluster import SECRET


def test_a_cluster_gets_its_administrator_and_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    with Cluster(nodes=1, form=False) as cluster:
        servers = cluster.servers

        def ask(*words: str) -> int:
            return run([*words, "-s", servers])

        init = ("cluster", "init", "--secret-file", "secret", "--admin-out", "admin.token")
        assert ask(*init) == Exit.OK
        assert stat.S_IMODE((tmp_path / "admin.token").stat().st_mode) == 0o600
        assert ask(*init) == Exit.FAILED, "the file is not overwritten"
        assert ask("auth", "enable") == Exit.DENIED
        assert ask("auth", "enable", "--token-file", "admin.token") == Exit.OK
        cluster.wait_until(lambda: cluster.brokers[1].gate.on and not cluster.brokers[1].gate.deaf)
        assert ask("topic", "list") == Exit.DENIED
        assert "hint: pass token=" in capsys.readouterr().err
        monkeypatch.setenv("TINYMQ_TOKEN_FILE", "admin.token")
        assert ask("topic", "create", "orders") == Exit.OK
        assert ask("user", "create", "etl") == Exit.OK
        assert ask("acl", "grant", "etl", "write", "topic:orders*") == Exit.OK
        assert ask("user", "token", "etl", "--label", "nightly", "--lifetime", "90d", "--out", "etl.token") == Exit.OK
        assert ask("acl", "test", "etl", "write", "topic:orders") == Exit.OK
        assert ask("acl", "test", "etl", "read", "topic:orders") == Exit.DENIED
        capsys.readouterr()
        assert ask("user", "list", "etl", "-o", "json") == Exit.OK
        (etl,) = json.loads(capsys.readouterr().out)["users"]
        assert (etl["grants"], etl["tokens"][0]["label"]) == (["write topic:orders*"], "nightly")

        # From a file that others may read no token is taken.
        (tmp_path / "etl.token").chmod(0o644)
        assert ask("whoami", "--token-file", "etl.token") == Exit.USAGE
        (tmp_path / "etl.token").chmod(0o600)
        monkeypatch.delenv("TINYMQ_TOKEN_FILE")
        assert run(["context", "set", "prod", servers, "--token-file", "etl.token"]) == Exit.OK
        assert stat.S_IMODE(contexts.path().stat().st_mode) == 0o600
        capsys.readouterr()
        assert run(["whoami"]) == Exit.OK
        assert capsys.readouterr().out.startswith("etl (by token)\nmay write topic:orders*\n")
        assert run(["topic", "delete", "orders", "--yes"]) == Exit.DENIED
        assert run(["context", "list", "-o", "json"]) == Exit.OK
        token = (tmp_path / "etl.token").read_text().strip()
        out, err = capsys.readouterr()
        assert token not in out + err
        assert "tinymq acl grant etl delete topic:orders" in err

        assert ask("user", "revoke", "etl", "--all", "--token-file", "admin.token") == Exit.OK
        assert run(["whoami"]) == Exit.DENIED
        assert ask("auth", "administrator", "rescuer", "--secret-file", "secret", "--out", "new.token") == Exit.OK
        assert ask("auth", "disable", "--token-file", "new.token") == Exit.OK
