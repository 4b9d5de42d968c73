"""A ZooKeeper session on the broker's loop: reads, transactions, watches, and the state of the connection.

kazoo runs threads of its own. Their results and events enter the loop here, by `call_soon_threadsafe`, and no call to
kazoo blocks the loop. Only this module imports kazoo.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from tinymq.base.clock import Clock
from tinymq.base.config import ZookeeperUrl, parse_address
from tinymq.base.errors import Denied, NotReady
from tinymq.registry.zookeeper.tree import CheckNode, CreateNode, Op, PutNode, RemoveNode

RETRY_S = 0.05  # between the first two attempts to connect
RETRY_S_MAX = 1.0
PROBE_S = 1.0  # deadline of a probe for why a server cannot be reached
STOP_S = 2.0  # deadline for ending the session at a stop; otherwise the session expires

_START = "start ZooKeeper, or check the registry's URL in the broker's configuration"

logger = structlog.get_logger("tinymq.registry")
logging.getLogger("kazoo").addHandler(logging.NullHandler())  # else it writes to stderr; we log transitions


class StaleTree(Exception):
    """The tree has changed since the transaction was made. Nothing was done."""


class Disconnected(Exception):
    """There is no answer, because the connection is lost or silent. A request that was `sent` may have been done."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class Node:
    """A node's content and version."""

    data: bytes
    version: int
    owner: int  # the session of an ephemeral node; 0: the node is not ephemeral


class ZookeeperSession:
    """One client with one session at a time. kazoo opens a new session when ZooKeeper has ended the last one.

    `on_state` is called on the loop after each change of `connected` or `session_id`, and `on_watch` after a change of
    a node that was read with `watch`.
    """

    def __init__(self, url: ZookeeperUrl, session_s: float, clock: Clock) -> None:
        self.where = ",".join(url.servers) + url.chroot
        self.connected = False
        self.session_id = 0  # of the newest established session
        self.on_state: Callable[[], None] = lambda: None
        self.on_watch: Callable[[], None] = lambda: None
        self._url = url
        self._session_s = session_s
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._stopping = False
        secured: dict[str, Any] = {}
        if url.user:
            secured = {"auth_data": [("digest", f"{url.user}:{url.password}")], "default_acl": CREATOR_ALL_ACL}
        self._client = KazooClient(
            ",".join(url.servers),
            timeout=session_s,
            connection_retry={"max_tries": -1, "delay": RETRY_S, "backoff": 2, "max_delay": RETRY_S_MAX},
            **secured,
        )
        self._client.add_listener(self._listen)

    async def start(self, timeout_s: float) -> None:
        """Connect. Raises NotReady, which gives a reason for every address."""
        self._client.start_async()
        late = self._loop.create_future()
        waiting = self._loop.create_task(self.wait_connected())
        timer = self._clock.call_later(timeout_s, lambda: late.set_result(None))
        await asyncio.wait((waiting, late), return_when=asyncio.FIRST_COMPLETED)
        timer.cancel()
        waiting.cancel()
        if not self.connected:
            await self.stop()
            reasons = await asyncio.gather(*(asyncio.to_thread(_probe, server) for server in self._url.servers))
            raise NotReady(
                f"no ZooKeeper server gave a session in {timeout_s:.1f} s: {'; '.join(reasons)}", hint=_START
            )

    async def stop(self) -> None:
        """End the session. If that takes too long, leave it to expire. A second call does nothing."""
        if self._stopping:
            return
        self._stopping = True
        stopped = asyncio.Event()

        def stop() -> None:
            try:
                self._client.stop()
                self._client.close()
            except Exception as error:  # kazoo has many errors for a connection that is stuck or was never made
                logger.info("session_left_to_expire", registry=self.where, reason=repr(error)[:200])
            self._cross(stopped.set)

        # kazoo's stop blocks. A thread of its own cannot hold up the loop, nor the end of the process (daemon).
        threading.Thread(target=stop, name="tinymq-zookeeper-stop", daemon=True).start()
        timer = self._clock.call_later(STOP_S, stopped.set)
        await stopped.wait()
        timer.cancel()

    async def wait_connected(self) -> None:
        """Return once there is a session."""
        while not self.connected:
            self._changed.clear()
            await self._changed.wait()

    # ---- requests: each raises Disconnected and Denied --------------------------------------------------

    async def get(self, path: str, *, watch: bool = False) -> Node | None:
        """Read a node; None: there is no such node, and it is not watched."""
        root = self._url.chroot
        try:
            data, stat = await self._ask(lambda: self._client.get_async(root + path, self._on_watch if watch else None))
        except NoNodeError:
            return None
        return Node(data, stat.version, stat.ephemeralOwner)

    async def children(self, path: str, *, watch: bool = False) -> list[str]:
        """The sorted names of a node's children. For a missing node: no names, and it is not watched."""
        root = self._url.chroot
        try:
            return sorted(
                await self._ask(lambda: self._client.get_children_async(root + path, self._on_watch if watch else None))
            )
        except NoNodeError:
            return []

    async def sync(self) -> None:
        """Make all later reads at least as new as every write before this call."""
        await self._ask(lambda: self._client.sync_async(self._url.chroot))

    async def make_root(self) -> None:
        """Create the path of the URL and all nodes above it, which every user may change. (kazoo's own chroot support
        creates only the last node.)"""
        names = self._url.chroot.split("/")
        for depth in range(2, len(names) + 1):
            path = "/".join(names[:depth])
            acl = None if depth == len(names) else OPEN_ACL_UNSAFE
            with contextlib.suppress(NodeExistsError):
                await self._ask(partial(self._client.create_async, path, acl=acl))

    async def commit(self, ops: Sequence[Op]) -> None:
        """Carry out all operations, or none. Raises StaleTree."""
        transaction, root = self._client.transaction(), self._url.chroot
        for op in ops:
            match op:
                case CreateNode(path, data, ephemeral):
                    transaction.create(root + path, data, ephemeral=ephemeral)
                case PutNode(path, data, version):
                    transaction.set_data(root + path, data, version)
                case RemoveNode(path, version):
                    transaction.delete(root + path, version)
                case CheckNode(path, version):
                    transaction.check(root + path, version)
        results = await self._ask(transaction.commit_async)
        for op, result in zip(ops, results, strict=False):
            if isinstance(result, RolledBackError | RuntimeInconsistency):
                continue  # this operation was undone, because another one failed
            if isinstance(result, BadVersionError | NoNodeError | NodeExistsError):
                raise StaleTree(f"{op.path}: {type(result).__name__}")
            if isinstance(result, Exception):
                raise _denied(op.path, result)

    async def _ask(self, call: Callable[[], Any]) -> Any:
        if not self.connected:
            raise Disconnected("not connected to ZooKeeper", sent=False)
        answer: asyncio.Future[Any] = self._loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(value)

        # kazoo calls back in its own thread, or never. Hence the deadline: a session that has been silent for its whole
        # length is as good as lost.
        request = call()
        request.rawlink(lambda result: self._cross(lambda: settle(result.value, result.exception)))
        silent = Disconnected(f"ZooKeeper has not answered in {self._session_s:.1f} s", sent=True)
        timer = self._clock.call_later(self._session_s, lambda: settle(None, silent))
        try:
            return await answer
        except (NoNodeError, NodeExistsError):
            raise
        except NoAuthError as error:
            raise _denied("", error) from None
        except KazooException as error:
            raise Disconnected(f"ZooKeeper: {type(error).__name__} {error}", sent=True) from None
        finally:
            timer.cancel()

    # ---- from kazoo's threads ------------------------------------------------------------------------------

    def _cross(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call)

    def _listen(self, state: str) -> None:
        client_id = self._client.client_id if state == KazooState.CONNECTED else None
        self._cross(lambda: self._enter(state == KazooState.CONNECTED, client_id[0] if client_id else 0))

    def _on_watch(self, event: object) -> None:
        self._cross(lambda: self.on_watch())

    def _enter(self, connected: bool, session_id: int) -> None:
        self.connected = connected
        self.session_id = session_id or self.session_id
        self._changed.set()
        self.on_state()


def _probe(server: str) -> str:
    """The reason why a server cannot be used, as far as a connection shows."""
    try:
        with socket.create_connection(parse_address(server), timeout=PROBE_S):
            return f"{server}: it takes connections, and gives no session (frozen, without a quorum, or no ZooKeeper)"
    except OSError as error:
        return f"{server}: {error.strerror or error}"


def _denied(path: str, error: Exception) -> Denied:
    hint = "check the user and password in the registry's URL, and who created the nodes there"
    return Denied(f"ZooKeeper refused {path or 'a request'}: {type(error).__name__} {error}".rstrip(), hint=hint)
