"""Proof of the cluster secret in calls that form or recover a cluster, or that a broker forwards to another.

A proof is an HMAC-SHA256, with a label for each kind of call.
"""

from __future__ import annotations

import hashlib
import hmac

from tinymq.base.errors import WrongSecret

NONCE_BYTES = 32


def describe_proof(secret: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, b"describe" + nonce, hashlib.sha256)


def form_proof(secret: bytes, nonce: bytes, cluster_id: bytes, first_entry: bytes) -> bytes:
    return hmac.digest(secret, b"form" + nonce + cluster_id + first_entry, hashlib.sha256)


def survey_proof(secret: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, b"survey" + nonce, hashlib.sha256)


def take_over_proof(secret: bytes, challenge: bytes, orders: bytes) -> bytes:
    return hmac.digest(secret, b"take-over" + challenge + orders, hashlib.sha256)


def forward_proof(secret: bytes, call: bytes) -> bytes:
    return hmac.digest(secret, b"forward" + call, hashlib.sha256)


def administrator_proof(secret: bytes, challenge: bytes, token_sha256: bytes, name: str) -> bytes:
    """The challenge and the hash have known lengths, so that the name can come last."""
    return hmac.digest(secret, b"administrator" + challenge + token_sha256 + name.encode(), hashlib.sha256)


def check_proof(proof: bytes, expected: bytes) -> None:
    """Raises WrongSecret, in constant time."""
    if not hmac.compare_digest(proof, expected):
        raise WrongSecret("the proof of the cluster secret is wrong")
