"""RabbitMQ and its Erlang, from Debian's packages into .venv/tools: installs nothing, and needs no root.

    python -m benchmarks.peers.rabbitmq_setup

The second run only checks that the files are there.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from benchmarks.peers.contract import MissingPiece
from tests.registry.zookeeper_setup import unpack_debian

FOLDER = Path(sys.prefix) / "tools" / "rabbitmq"  # of the virtual environment that runs the benchmark
ERLANG = (
    "asn1", "base", "crypto", "eldap", "ftp", "inets", "mnesia", "os-mon", "parsetools", "public-key", "runtime-tools",
    "snmp", "ssl", "syntax-tools", "tftp", "tools", "xmerl",
)  # fmt: skip
PACKAGES = ("rabbitmq-server", *(f"erlang-{name}" for name in ERLANG))
COMMAND = ".venv/bin/python -m benchmarks.peers.rabbitmq_setup"


def programs() -> tuple[Path, Path]:
    """The folders of RabbitMQ's scripts, and of Erlang's programs. Raises MissingPiece."""
    found = sorted((FOLDER / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin"))
    if not found:
        raise MissingPiece(f"RabbitMQ (Debian): {COMMAND}")
    return found[-1], FOLDER / "usr/lib/erlang/bin"


def main() -> None:
    if FOLDER.exists():
        return
    if shutil.which("apt-get") is None:
        sys.exit("make: RabbitMQ comes from Debian's packages, and there is no apt-get here")
    print("make: getting RabbitMQ and Erlang from Debian's packages into .venv/tools")
    private = FOLDER.with_name("rabbitmq.partial")
    shutil.rmtree(private, ignore_errors=True)
    try:
        unpacked = unpack_debian(PACKAGES, private)
    except OSError as error:
        sys.exit(f"make: {error}")
    # Erlang's scripts name the folder in which Debian installs it.
    for script in (*unpacked.glob("usr/lib/erlang/bin/*"), *unpacked.glob("usr/lib/erlang/erts-*/bin/*")):
        if script.is_file() and not script.is_symlink() and script.read_bytes()[:2] == b"#!":
            script.write_text(script.read_text().replace("=/usr/lib/erlang", f"={FOLDER / 'usr/lib/erlang'}"))
    unpacked.rename(FOLDER)
    shutil.rmtree(private)


if __name__ == "__main__":
    main()
