"""Decides to which brokers a client sends its token."""

from __future__ import annotations

from tinymq.base.config import is_loopback, parse_address
from tinymq.base.errors import InvalidConfig
from tinymq.base.identity.token import SecretText

HINT = "connect over TLS or on this machine, or accept that others can read it: token_without_tls=True"


class TokenSender:
    """The token of one client, and the rule by which it leaves this process."""

    def __init__(self, token: SecretText, without_tls: bool = False) -> None:
        """`without_tls`: send it to other machines over connections without TLS, too."""
        self._token = token
        self._without_tls = without_tls

    def token_for(self, address: str, *, encrypted: bool = False) -> str:
        """Return the token to send to a broker at `address`; "" if there is none. Raises InvalidConfig if others could
        read it on its way."""
        if not self._token:
            return ""
        if not (encrypted or self._without_tls or is_loopback(parse_address(address)[0])):
            raise InvalidConfig(f"{address} would get the token over a connection without TLS", hint=HINT)
        return self._token.reveal()


NO_TOKEN = TokenSender(SecretText(""))
