"""Tokens, by which users prove who they are, and SecretText, which hides a secret from logs, errors and reprs.

A token is 256 random bits as text. Brokers keep only its hash.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Callable

PREFIX = "tmq_"  # so that people, and programs that look for leaked secrets, recognise one
TOKEN_BYTES = 32


def make_token(random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> str:
    """Return a new token."""
    return PREFIX + base64.urlsafe_b64encode(random_bytes(TOKEN_BYTES)).rstrip(b"=").decode()


def hash_token(token: str) -> bytes:
    """The SHA-256 of a token, which brokers store. A token has so many random bits that neither salt nor a slow hash
    would add anything."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


class SecretText:
    """Holds a secret: `reveal` returns it, and nothing else does."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The secret itself, to be sent and not to be kept."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretText) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "SecretText('***')" if self._text else "SecretText('')"

    __str__ = __repr__
