"""Keeps one client for each process and cluster, because Spark reuses its Python workers for many tasks.

A worker runs one task at a time, and may end without notice, so nothing here needs to be closed. A forked process makes
clients of its own, because gRPC does not survive a fork.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import OrderedDict
from functools import lru_cache
from os import getpid
from typing import TYPE_CHECKING, Protocol

from pyspark_tinymq.session.login import Login
from pyspark_tinymq.session.replicas import LOOPBACK

if TYPE_CHECKING:
    from tinymq.client import Client

LOG = logging.getLogger("pyspark_tinymq")

CLIENTS_MAX = 8
RACK = "TINYMQ_RACK"
"""The environment variable that names a process's rack: spark.executorEnv.TINYMQ_RACK."""


class ConnectionOptions(Protocol):
    """The options of a read or a write that identify its client."""

    @property
    def servers(self) -> tuple[str, ...]: ...
    @property
    def request_timeout_ms(self) -> int: ...
    @property
    def rack(self) -> str: ...
    @property
    def login(self) -> Login: ...


_Key = tuple[int, tuple[str, ...], int, str, Login]
_clients: OrderedDict[_Key, Client] = OrderedDict()  # the most recently used client is last
_asking = threading.Lock()


def client(source: ConnectionOptions) -> Client:
    """Return the client for these brokers, which connects at its first use. The caller must not close it."""
    login = source.login
    key = (getpid(), source.servers, source.request_timeout_ms, rack(source), login)
    with _asking:
        client = _clients.get(key)
        if client is None:
            from tinymq.client import Client

            client = _clients[key] = Client(
                source.servers, request_timeout_ms=source.request_timeout_ms, rack=rack(source), token=login.token,
                tls=login.tls, tls_ca=login.tls_ca, tls_dir=login.tls_dir,
            )  # fmt: skip
        _clients.move_to_end(key)
        old = _clients.popitem(last=False) if len(_clients) > CLIENTS_MAX else None
    if old is not None and old[0][0] == getpid():
        old[1].close()
    return client


def close_all() -> None:
    """Close this process's clients. Programs that start and stop clusters need this."""
    with _asking:
        clients = [each for key, each in _clients.items() if key[0] == getpid()]
        _clients.clear()
    for each in clients:
        each.close()


def rack(source: ConnectionOptions) -> str:
    """Return the rack of this process; "" if neither the options nor the environment name it."""
    return source.rack or os.environ.get(RACK, "")


@lru_cache(maxsize=1)
def hosts() -> frozenset[str]:
    """Return the names and addresses of this host, which may occur in the addresses of brokers."""
    names = {socket.gethostname(), *LOOPBACK}
    try:
        for client in socket.getaddrinfo(socket.gethostname(), None, flags=socket.AI_CANONNAME):
            names |= {str(client[4][0]), client[3]}
    except OSError as error:  # the host's own name does not resolve
        LOG.debug("%s not looked up: %s", socket.gethostname(), error)
    return frozenset(names - {""})
