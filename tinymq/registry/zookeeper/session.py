"""A ZooKeeper session in the broker's loop: reads, transactions, watches, and what becomes of the connection.

kazoo runs threads of its own. What they have to say crosses into the loop here, by `call_soon_threadsafe`, and
nothing of theirs is called that blocks. Only this module imports kazoo.
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
from tinymq.registry.zookeeper.tree import Check, Create, Op, Put, Remove

RETRY_S = 0.05  # between two tries to connect, at first
RETRY_S_MAX = 1.0
PROBE_S = 1.0  # for finding out why a server cannot be reached
STOP_S = 2.0  # for ending the session at a stop; it expires by itself otherwise

_START = "start ZooKeeper, or check the registry's URL in the broker's configuration"

logger = structlog.get_logger("tinymq.registry")
logging.getLogger("kazoo").addHandler(logging.NullHandler())  # else its warnings go to stderr: transitions are ours


class Conflict(Exception):
    """A transaction found another tree than it was made for: nothing was done."""


class Disconnected(Exception):
    """There is no answer: the connection is gone, or silent. What was `sent` may have been done."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class Node:
    data: bytes
    version: int
    owner: int  # the session of an ephemeral node; 0: of none


class ZookeeperSession:
    """One client, and one session after the other: a new one by itself when ZooKeeper has ended the last.

    `on_state` is called in the loop whenever `connected` or `session_id` has changed, `on_watch` when something
    that was read with `watch` has.
    """

    def __init__(self, url: ZookeeperUrl, session_s: float, clock: Clock) -> None:
        self.where = ",".join(url.servers) + url.chroot
        self.connected = False
        self.session_id = 0  # of the last one that was established
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
        """Connect. Raises NotReady, with every address and why it cannot be used."""
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
        """End the session; if that takes long, ZooKeeper ends it by itself. Again: nothing."""
        if self._stopping:
            return
        self._stopping = True
        stopped = asyncio.Event()

        def stop() -> None:
            try:
                self._client.stop()
                self._client.close()
            except Exception as error:  # kazoo's own words for a connection that is stuck, or never was, are many
                logger.info("session_left_to_expire", registry=self.where, reason=repr(error)[:200])
            self._cross(stopped.set)

        threading.Thread(target=stop, name="tinymq-zookeeper-stop", daemon=True).start()
        timer = self._clock.call_later(STOP_S, stopped.set)
        await stopped.wait()
        timer.cancel()

    async def wait_connected(self) -> None:
        """Return while there is a session."""
        while not self.connected:
            self._changed.clear()
            await self._changed.wait()

    # ---- requests: each raises Disconnected, and Denied --------------------------------------------------

    async def get(self, path: str, *, watch: bool = False) -> Node | None:
        """None: no such node; then nothing is watched."""
        root = self._url.chroot
        try:
            data, stat = await self._ask(lambda: self._client.get_async(root + path, self._on_watch if watch else None))
        except NoNodeError:
            return None
        return Node(data, stat.version, stat.ephemeralOwner)

    async def children(self, path: str, *, watch: bool = False) -> list[str]:
        """Names, sorted; of what is not there none, and then nothing is watched."""
        root = self._url.chroot
        try:
            return sorted(
                await self._ask(lambda: self._client.get_children_async(root + path, self._on_watch if watch else None))
            )
        except NoNodeError:
            return []

    async def sync(self) -> None:
        """What is read from now on is at least as new as all that was written anywhere before."""
        await self._ask(lambda: self._client.sync_async(self._url.chroot))

    async def make_root(self) -> None:
        """The path that the URL names, and what is above it, which is anybody's. (kazoo's own chroot makes but its
        last part.)"""
        names = self._url.chroot.split("/")
        for depth in range(2, len(names) + 1):
            path = "/".join(names[:depth])
            acl = None if depth == len(names) else OPEN_ACL_UNSAFE
            with contextlib.suppress(NodeExistsError):
                await self._ask(partial(self._client.create_async, path, acl=acl))

    async def commit(self, ops: Sequence[Op]) -> None:
        """All of it or nothing. Raises Conflict."""
        transaction, root = self._client.transaction(), self._url.chroot
        for op in ops:
            match op:
                case Create(path, data, ephemeral):
                    transaction.create(root + path, data, ephemeral=ephemeral)
                case Put(path, data, version):
                    transaction.set_data(root + path, data, version)
                case Remove(path, version):
                    transaction.delete(root + path, version)
                case Check(path, version):
                    transaction.check(root + path, version)
        results = await self._ask(transaction.commit_async)
        for op, result in zip(ops, results, strict=False):
            if isinstance(result, RolledBackError | RuntimeInconsistency):
                continue  # another one failed
            if isinstance(result, BadVersionError | NoNodeError | NodeExistsError):
                raise Conflict(f"{op.path}: {type(result).__name__}")
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

        asked = call()
        asked.rawlink(lambda result: self._cross(lambda: settle(result.value, result.exception)))
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
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
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
    """Why a server cannot be used, as far as a connection tells."""
    try:
        with socket.create_connection(parse_address(server), timeout=PROBE_S):
            return f"{server}: it takes connections, and gives no session (frozen, without a quorum, or no ZooKeeper)"
    except OSError as error:
        return f"{server}: {error.strerror or error}"


def _denied(path: str, error: Exception) -> Denied:
    hint = "check the user and password in the registry's URL, and who made the nodes there"
    return Denied(f"ZooKeeper refused {path or 'a request'}: {type(error).__name__} {error}".rstrip(), hint=hint)
