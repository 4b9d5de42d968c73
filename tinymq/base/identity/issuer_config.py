"""Whose JSON Web Tokens a broker takes, and which user each of them is (tinymq/access/issuer.py checks them)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from tinymq.base.errors import InvalidConfig

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
SKEW_S_MAX = 300.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class IssuerConfig:
    """One issuer of tokens. The section [jwt] of a broker's configuration; without an `issuer` it takes none."""

    issuer: str = ""  # the claim `iss`
    audience: str = ""  # the claim `aud` has to name it, so that tokens for other services count for nothing here
    keys: str = ""  # the issuer's keys (JWKS): a file, or a URL that begins with https://
    keys_ca: str = ""  # a file with the authorities of that URL's certificate; "": the system's
    algorithm: str = "RS256"  # of signatures: no other one counts, whatever a token says
    user_claim: str = "sub"  # its text is the user's name
    user_pattern: str = ""  # a regular expression for the whole text, whose group is the name: (.+)@corp\.example
    user_prefix: str = ""  # in front of the name, so that the issuer cannot name users of the cluster's own
    roles_claim: str = ""  # a list of roles, beside those that the cluster has for the user; "": none
    skew_s: float = 30.0  # that the clocks of the issuer and of a broker may differ

    def __post_init__(self) -> None:
        if not self.issuer:
            for name in ("audience", "keys"):
                _require(not getattr(self, name), f"jwt.{name} without jwt.issuer")
            return
        _require(bool(self.audience), "jwt.issuer without jwt.audience: tokens for any service would count here")
        _require(bool(self.keys), "jwt.issuer without jwt.keys", "name a file, or an https:// URL, with its JWKS")
        _require(
            self.algorithm in ALGORITHMS,
            f"jwt.algorithm is {self.algorithm[:100]!r}",
            f"one of {', '.join(ALGORITHMS)}",
        )
        _require(bool(self.user_claim), "jwt.user_claim is empty")
        _require(0 <= self.skew_s <= SKEW_S_MAX, f"jwt.skew_s is not 0 to {SKEW_S_MAX:.0f}")
        if self.remote:
            where = urlsplit(self.keys)
            secure = where.scheme == "https" or (where.scheme == "http" and where.hostname in _LOOPBACK)
            _require(
                secure and bool(where.hostname), "jwt.keys is a URL that others on the way could answer", "use https"
            )
        if self.user_pattern:
            try:
                groups = re.compile(self.user_pattern).groups
            except re.error as error:
                raise InvalidConfig(f"jwt.user_pattern is no regular expression: {error}") from None
            _require(groups == 1, "jwt.user_pattern has not exactly one group", r"such as (.+)@corp\.example")

    @property
    def remote(self) -> bool:
        """Are the keys fetched from a URL?"""
        return "://" in self.keys


def _require(holds: bool, problem: str, hint: str = "") -> None:
    if not holds:
        raise InvalidConfig(problem, hint=hint)
