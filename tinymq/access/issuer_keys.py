"""The keys of a token's issuer: fetched again from time to time, and soon when a token names one that is not known.

Fetching is bounded in time, in bytes and in number, follows no redirect, and happens beside the broker's loop. While it
fails, the last keys count for KEEP_S.
"""

from __future__ import annotations

import asyncio
import json
import math
import ssl
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from tinymq.base import extras
from tinymq.base.clock import Clock
from tinymq.base.identity.issuer_config import IssuerConfig

with extras.required("tokens of an issuer ([jwt])"):
    import jwt

KEYS_BYTES_MAX = 1 << 20
KEYS_MAX = 100
FETCH_S = 5.0
REFRESH_S, REFRESH_FILE_S = 300.0, 5.0  # of a URL, of a file
ASK_S = 10.0  # at least between two fetches for keys that are not known
KEEP_S = 86_400.0  # the last keys count for so long while no others can be had

logger = structlog.get_logger("tinymq.access")

Fetch = Callable[[], Awaitable[bytes]]


class IssuerKeys:
    """The keys of one issuer, by their ids. `run` keeps them up to date."""

    def __init__(self, config: IssuerConfig, clock: Clock, fetch: Fetch | None = None) -> None:
        self.changed: Callable[[], None] = lambda: None
        self.known = False  # they were fetched once
        self._config = config
        self._clock = clock
        self._fetch = fetch or (lambda: asyncio.to_thread(_load, config))
        self._keys: dict[str, Any] = {}
        self._fetched_s = self._tried_s = -math.inf
        self._trying = False
        self._wake = asyncio.Event()

    def get(self, key_id: str) -> Any | None:
        """The key of an id; "": the only key that there is. None: it is not known."""
        if not key_id and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    def ask(self) -> bool:
        """A token names a key that is not known. Returns whether it is worth while to wait for a fetch."""
        if self._trying or self._wake.is_set():
            return True
        if self._clock.monotonic() - self._tried_s < ASK_S:
            return False
        self._wake.set()
        return True

    async def run(self) -> None:
        """Fetch the keys again and again, until cancelled."""
        pause_s = REFRESH_S if self._config.remote else REFRESH_FILE_S
        while True:
            await self._refresh()
            timer = self._clock.call_later(pause_s if self.known else ASK_S, self._wake.set)
            await self._wake.wait()
            timer.cancel()
            self._wake.clear()

    async def _refresh(self) -> None:
        self._trying = True
        try:
            keys = read_keys(await self._fetch(), self._config.algorithm)
        except Exception as error:  # whatever an HTTP server, a file or a parser makes of it
            logger.warning("issuer_keys_not_fetched", keys=self._config.keys, reason=f"{type(error).__name__}: {error}")
            if self._clock.monotonic() - self._fetched_s > KEEP_S:
                self._replace({})
        else:
            self._fetched_s, self.known = self._clock.monotonic(), True
            self._replace(keys)
        finally:
            self._trying = False
            self._tried_s = self._clock.monotonic()

    def _replace(self, keys: dict[str, Any]) -> None:
        removed = [key_id for key_id in self._keys if key_id not in keys]
        same = not removed and len(keys) == len(self._keys)
        self._keys = keys
        if not same:
            self.changed()


def read_keys(data: bytes, algorithm: str) -> dict[str, Any]:
    """The keys of a JWKS that may sign by this algorithm, by their ids. Others are left out: a symmetric one is no key
    of an issuer. Raises ValueError."""
    document = json.loads(data)
    if not isinstance(document, Mapping) or not isinstance(document.get("keys"), list):
        raise ValueError("not a JWKS")
    if len(document["keys"]) > KEYS_MAX:
        raise ValueError(f"more than {KEYS_MAX} keys")
    keys: dict[str, Any] = {}
    for each in document["keys"]:
        if not isinstance(each, Mapping) or each.get("kty") != _KIND[algorithm[:2]] or each.get("use", "sig") != "sig":
            continue
        if each.get("alg", algorithm) != algorithm or "d" in each:  # an issuer must not publish a private key
            continue
        try:
            keys[str(each.get("kid", ""))] = jwt.PyJWK(dict(each), algorithm)
        except jwt.PyJWTError as error:
            logger.warning("issuer_key_unusable", key=str(each.get("kid", ""))[:100], reason=str(error))
    return keys


_KIND = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _load(config: IssuerConfig) -> bytes:
    """Read the JWKS. Blocks. Raises OSError, ValueError."""
    if not config.remote:
        path = Path(config.keys)
        if path.stat().st_size > KEYS_BYTES_MAX:
            raise ValueError("the file is too large for a JWKS")
        return path.read_bytes()
    context = ssl.create_default_context(cafile=config.keys_ca or None)
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context), _NoRedirects()
    )
    with opener.open(config.keys, timeout=FETCH_S) as answer:
        parts, size = [], 0
        while piece := answer.read1(65_536):
            size += len(piece)
            if size > KEYS_BYTES_MAX:
                raise ValueError("the answer is too large for a JWKS")
            parts.append(piece)
        return b"".join(parts)
