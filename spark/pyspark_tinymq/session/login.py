"""How the clients of a query get in: their token, and their TLS."""

from __future__ import annotations

from dataclasses import dataclass

from tinymq.base.identity.token import SecretText

NO_TOKEN = SecretText("")


@dataclass(frozen=True, slots=True)
class Login:
    """Picklable, because tasks get it. No repr shows the token. An empty token is the one of the process's
    environment."""

    token: SecretText = NO_TOKEN
    tls: bool = False
    tls_ca: str = ""
    tls_dir: str = ""
