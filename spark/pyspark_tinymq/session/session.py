"""One client for each process and cluster, kept for the tasks that come: Spark uses its Python workers again.

A worker runs one task at a time, and ends without a word: nothing here needs to be closed then. A process that was
forked from one with clients makes its own; gRPC does not live through a fork, and says so.
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

from pyspark_tinymq.session.replicas import LOOPBACK

if TYPE_CHECKING:
    from tinymq.client import Client

LOG = logging.getLogger("pyspark_tinymq")

CLIENTS_MAX = 8
RACK = "TINYMQ_RACK"
"""The environment variable that names a process's rack: spark.executorEnv.TINYMQ_RACK."""


class Reached(Protocol):
    """What a read or a write says of the cluster that it is for."""

    @property
    def servers(self) -> tuple[str, ...]: ...
    @property
    def request_timeout_ms(self) -> int: ...
    @property
    def rack(self) -> str: ...


_Key = tuple[int, tuple[str, ...], int, str]
_clients: OrderedDict[_Key, Client] = OrderedDict()  # the one that was asked for last at the end
_asking = threading.Lock()


def client(source: Reached) -> Client:
    """The client for these brokers, made if need be; connects when it is used. Whoever asks does not close it."""
    key = (getpid(), source.servers, source.request_timeout_ms, rack(source))
    with _asking:
        found = _clients.get(key)
        if found is None:
            from tinymq.client import Client

            found = _clients[key] = Client(
                source.servers, request_timeout_ms=source.request_timeout_ms, rack=rack(source)
            )
        _clients.move_to_end(key)
        old = _clients.popitem(last=False) if len(_clients) > CLIENTS_MAX else None
    if old is not None and old[0][0] == getpid():
        old[1].close()
    return found


def close_all() -> None:
    """Close this process's clients: for who starts clusters and stops them."""
    with _asking:
        clients = [each for key, each in _clients.items() if key[0] == getpid()]
        _clients.clear()
    for each in clients:
        each.close()


def rack(source: Reached) -> str:
    """Where this process runs; "" if nobody said."""
    return source.rack or os.environ.get(RACK, "")


@lru_cache(maxsize=1)
def hosts() -> frozenset[str]:
    """The names and addresses of this host, as brokers' addresses may name it."""
    names = {socket.gethostname(), *LOOPBACK}
    try:
        for found in socket.getaddrinfo(socket.gethostname(), None, flags=socket.AI_CANONNAME):
            names |= {str(found[4][0]), found[3]}
    except OSError as error:  # a host whose own name leads nowhere
        LOG.debug("%s not looked up: %s", socket.gethostname(), error)
    return frozenset(names - {""})
