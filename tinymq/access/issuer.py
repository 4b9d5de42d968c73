"""Checks the JSON Web Tokens of an issuer (RFC 7519, with the advice of RFC 8725), and says which user each one is.

A token counts if the issuer signed it by the one algorithm that is configured, for this audience, and now. The
token's own words about its algorithm, or about the place of its key, decide nothing.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any

from tinymq.access.directory import Principal
from tinymq.access.issuer_keys import IssuerKeys
from tinymq.base import extras
from tinymq.base.clock import Clock
from tinymq.base.errors import InvalidName, NotReady, Unauthenticated
from tinymq.base.identity.issuer_config import IssuerConfig
from tinymq.base.identity.token import PREFIX, hash_token
from tinymq.base.types import check_consumer_name

with extras.required("tokens of an issuer ([jwt])"):
    import jwt

REMEMBERED_MAX = 10_000  # tokens that were good, by their hashes: a signature costs 50 µs
ROLES_MAX = 32


class Issuer:
    """The tokens of one issuer."""

    def __init__(self, config: IssuerConfig, keys: IssuerKeys, clock: Clock) -> None:
        self.keys = keys
        self._config = config
        self._clock = clock
        self._good: OrderedDict[bytes, Principal] = OrderedDict()

    def takes(self, token: str) -> bool:
        """Does a text look like such a token, and not like one of the cluster's own?"""
        return token.count(".") == 2 and not token.startswith(PREFIX)

    def principal(self, token: str) -> Principal:
        """The user of a token. Raises Unauthenticated, and NotReady while the issuer's keys are being fetched."""
        sha256 = hash_token(token)
        known = self._good.get(sha256)
        if known is not None and self.holds(known):
            self._good.move_to_end(sha256)
            return known
        principal = self._checked(token)
        self._good[sha256] = principal
        if len(self._good) > REMEMBERED_MAX:
            self._good.popitem(last=False)
        return principal

    def holds(self, principal: Principal) -> bool:
        """Is the key that signed the token of this caller still one of the issuer's?"""
        return self.keys.get(principal.key_id) is not None

    def _checked(self, token: str) -> Principal:
        config = self._config
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise Unauthenticated("the token is no JWT") from None
        key_id = header.get("kid", "")
        if header.get("alg") != config.algorithm:
            raise Unauthenticated(
                f"the JWT is signed by {str(header.get('alg'))[:20]!r}, and not by {config.algorithm}"
            )
        key = self._key(key_id if isinstance(key_id, str) else "")
        try:
            claims = jwt.decode(
                token, key, algorithms=[config.algorithm], audience=config.audience, issuer=config.issuer,
                leeway=config.skew_s, options={"require": ["exp", "iss", "aud", config.user_claim], "verify_exp": False,
                "verify_nbf": False, "verify_iat": False},
            )  # fmt: skip
        except jwt.PyJWTError as error:
            raise Unauthenticated(f"the JWT is refused: {error}") from None
        expires_us = self._lifetime(claims)
        return Principal(
            self._user(claims[config.user_claim]), "jwt", self._roles(claims), expires_us=expires_us, key_id=str(key_id)
        )  # fmt: skip

    def _key(self, key_id: str) -> Any:
        key = self.keys.get(key_id)
        if key is not None:
            return key
        if self.keys.ask():
            raise NotReady("the keys of the tokens' issuer are being fetched", hint="ask again shortly")
        if not self.keys.known:
            raise NotReady("the keys of the tokens' issuer cannot be fetched; see the broker's log")
        raise Unauthenticated(f"the JWT is signed with the key {key_id[:100]!r}, which its issuer does not have")

    def _lifetime(self, claims: dict[str, Any]) -> int:
        """When the token ends, the skew included. By the broker's own clock. Raises Unauthenticated if it has not
        begun; its end is judged with every other proof's."""
        times = {name: claims[name] for name in ("exp", "nbf") if name in claims}
        if not all(isinstance(each, int | float) and 0 <= each < 1 << 40 for each in times.values()):
            raise Unauthenticated("the JWT is refused: its times are no numbers")
        if times.get("nbf", 0) > self._clock.wall_us() / 1e6 + self._config.skew_s:
            raise Unauthenticated("the JWT is refused: it is not valid yet")
        return max(1, int((times["exp"] + self._config.skew_s) * 1e6))

    def _user(self, text: object) -> str:
        if not isinstance(text, str):
            raise Unauthenticated(f"the JWT's claim {self._config.user_claim!r} is no text")
        if self._config.user_pattern:
            found = re.fullmatch(self._config.user_pattern, text[:1000])
            if found is None or not found[1]:
                raise Unauthenticated(f"the JWT's claim {self._config.user_claim!r} names no user of this cluster")
            text = found[1]
        try:
            return check_consumer_name(self._config.user_prefix + text)
        except InvalidName as error:
            raise Unauthenticated(f"the JWT names no user: {error.message}") from None

    def _roles(self, claims: dict[str, Any]) -> tuple[str, ...]:
        found = claims.get(self._config.roles_claim, []) if self._config.roles_claim else []
        return tuple(each for each in found if isinstance(each, str))[:ROLES_MAX] if isinstance(found, list) else ()


def make_issuer(config: IssuerConfig, clock: Clock) -> Issuer:
    return Issuer(config, IssuerKeys(config, clock), clock)
