"""How commands hand out a new token: printed once, or in a file that only its owner may read."""

from __future__ import annotations

import os
from pathlib import Path

from tinymq.base.errors import AlreadyExists
from tinymq.base.private_files import open_private
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_line, say


def check_free(path: Path | None) -> None:
    """Raise AlreadyExists if the file for a new token exists, before the token is made."""
    if path is not None and path.exists():
        raise AlreadyExists(f"{path} exists", hint="name a new file")


def hand_out(token: str, path: Path | None, name: str, output: Output) -> None:
    """Print a new token of the user `name`, or write it to a file that only this user may read."""
    if output == "json":
        print_json({"name": name, "token": token if path is None else None, "file": str(path) if path else None})
    elif path is None:
        print_line(token)
    if path is None:
        say("this is shown once: brokers keep a hash of it")
        return
    fd = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.write(fd, token.encode() + b"\n")
    finally:
        os.close(fd)
    say(f"the token is in {path}: nobody else has it")
