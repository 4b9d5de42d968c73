"""A relay that kills its own process after one of its steps: python -m tests.outbox.killed_relay STEP URL SERVERS"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from sqlalchemy import create_engine

from tinymq import Client
from tinymq.client import Transaction
from tinymq.outbox.relay import Relay, RelayConfig
from tinymq.outbox.store import RelayStore

STEPS: dict[str, tuple[type, str]] = {
    "take-the-id": (Transaction, "take_id"),
    "take-over": (RelayStore, "take"),
    "begin": (Transaction, "begin"),
    "mark": (RelayStore, "mark"),
    "stage": (Relay, "_stage"),
    "commit": (Transaction, "commit"),
    "remove": (RelayStore, "remove"),
}


def kill_after(owner: type, name: str) -> None:
    method = getattr(owner, name)

    def killing(*arguments: Any, **named: Any) -> None:
        method(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, staticmethod(killing) if isinstance(vars(owner).get(name), staticmethod) else killing)


def main() -> None:
    step, url, servers = sys.argv[1:]
    kill_after(*STEPS[step])
    config = RelayConfig(rows_max=3, lease_ms=200)
    Relay(create_engine(url), lambda: Client(servers), config).run(threading.Event())


if __name__ == "__main__":
    main()
