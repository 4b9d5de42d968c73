"""Decides to which brokers a client sends its token."""

from __future__ import annotations

import os
import stat

from tinymq.base.config import is_loopback, parse_address
from tinymq.base.errors import InvalidConfig
from tinymq.base.identity.token import SecretText
from tinymq.client.common.config import TOKEN_CHARS_MAX, check_token

HINT = "connect over TLS or on this machine, or accept that others can read it: token_without_tls=True"


class TokenSender:
    """The token of one client, and the rule by which it leaves this process."""

    def __init__(self, token: SecretText, without_tls: bool = False, file: str = "") -> None:
        """`without_tls`: send it to other machines over connections without TLS, too. `file`: has the token instead of
        `token`, and is read again when it changes."""
        self._token = token
        self._without_tls = without_tls
        self._file = file
        self._version: tuple[int, int, int] | None = None  # of the file that `_token` was read from

    def token_for(self, address: str, *, encrypted: bool = False) -> str:
        """Return the token to send to a broker at `address`; "" if there is none. Raises InvalidConfig if others could
        read it on its way."""
        if self._file:
            self._read()
        if not self._token:
            return ""
        if not (encrypted or self._without_tls or is_loopback(parse_address(address)[0])):
            raise InvalidConfig(f"{address} would get the token over a connection without TLS", hint=HINT)
        return self._token.reveal()

    def _read(self) -> None:
        """Read the file if it was replaced or changed. Raises InvalidConfig."""
        try:
            status = os.stat(self._file)
            version = status.st_mtime_ns, status.st_size, status.st_ino
            if version == self._version:
                return
            if status.st_mode & stat.S_IRWXO:
                hint = f"chmod o= {self._file}"
                raise InvalidConfig(f"every user may read the token file {self._file}", hint=hint)
            with open(self._file, encoding="utf-8") as file:
                text = file.read(TOKEN_CHARS_MAX + 1).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfig(f"cannot read the token file {self._file}: {error}") from None
        self._token, self._version = check_token(text, with_environment=False), version


NO_TOKEN = TokenSender(SecretText(""))
