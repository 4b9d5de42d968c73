"""The reports of nats-servers on their monitoring ports, which are not behind proxies. Plain and blocking.

An answer is None if the server is gone, stopped, or not ready yet.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any

from tinymq_chaos.real.peers.nats_config import HOST

ANSWER_S = 1.0
Page = Mapping[str, Any]


def ask(port: int, path: str) -> Page | None:
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)
    try:
        connection.request("GET", path)
        page = json.loads(connection.getresponse().read())
        return page if isinstance(page, dict) else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def streams(port: int) -> dict[str, Page] | None:
    """Return by stream its `cluster`: the leader according to this server, `raft_group`, and the leader's view of its
    followers.
    """
    page = ask(port, "/jsz?streams=true&raft=true")
    if page is None:
        return None
    accounts = page.get("account_details") or ()
    return {found["name"]: found for account in accounts for found in account.get("stream_detail") or ()}


def term(port: int, group: str) -> int:
    """Return the term of a Raft group according to this server; 0: it reports none."""
    page = ask(port, f"/raftz?acc=$G&group={group}") or {}
    return int(page.get("$G", {}).get(group, {}).get("term", 0))


def groups(port: int) -> dict[str, str]:
    """Return the stream of each Raft group that this server knows."""
    known = {found.get("stream_raft_group"): name for name, found in (streams(port) or {}).items()}
    return {group: name for group, name in known.items() if group}  # a group that is starting has no stream yet


def states(port: int) -> dict[str, tuple[str, int]]:
    """Return, by Raft group, this server's state ("LEADER" and so on) and its term."""
    page = ask(port, "/raftz?acc=$G") or {}
    return {group: (found["state"], int(found["term"])) for group, found in page.get("$G", {}).items()}


def routes(port: int) -> set[str] | None:
    """Return the names of the servers to which this one has a connection."""
    page = ask(port, "/routez")
    return None if page is None else {route["remote_name"] for route in page.get("routes") or ()}


def trouble(port: int) -> str:
    """Return why this server is not healthy by its own report; "" if it is."""
    page = ask(port, "/healthz")
    if page is None:
        return "does not answer"
    return "" if page.get("status") == "ok" else str(page.get("error") or page.get("status"))


def lagging(found: Page) -> list[str]:
    """Return the followers of a stream that lag behind, according to the leader."""
    replicas = found.get("cluster", {}).get("replicas") or ()
    return [
        f"{replica['name']} ({replica.get('lag', 0)} behind)"
        for replica in replicas
        if replica.get("offline") or replica.get("lag") or not replica.get("current")
    ]
