"""An issuer of tokens for tests: its keys, and a real HTTPS server that publishes them."""

from __future__ import annotations

import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tests.tls.authorities import authority
from tinymq.dev.certificates import write_issued
from tinymq.net.tls_files import CA, CERTIFICATE, KEY

AUDIENCE = "tinymq"


class TestIssuer:
    """Signs tokens with its keys by id, and publishes those in `published`, from `start` to `stop`."""

    __test__ = False

    def __init__(self, place: Path) -> None:
        self.keys: dict[str, Any] = {"one": rsa.generate_private_key(65537, 2048)}
        self.published = ["one"]
        self.extra: list[dict[str, Any]] = []  # further keys, as they are
        self.answer: bytes | None = None  # instead of the keys
        self.fetches = 0
        self._place = place

    def start(self) -> None:
        write_issued(self._place, authority("of the issuer").pem, authority("of the issuer").broker(9))
        issuer = self

        class Pages(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.fetches += 1
                if self.path == "/moved":
                    self.send_response(302)
                    self.send_header("Location", "/keys")
                    self.end_headers()
                    return
                body = issuer.answer if issuer.answer is not None else issuer.document()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._place / CERTIFICATE, self._place / KEY)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Of the keys; also the issuer's name."""
        return f"https://127.0.0.1:{self._server.server_port}/keys"

    @property
    def ca(self) -> str:
        """The authority of the server's certificate."""
        return str(self._place / CA)

    def document(self) -> bytes:
        """The JWKS."""
        return json.dumps({"keys": [self.jwk(key_id) for key_id in self.published] + self.extra}).encode()

    def jwk(self, key_id: str) -> dict[str, Any]:
        public = self.keys[key_id].public_key()
        is_rsa = isinstance(self.keys[key_id], rsa.RSAPrivateKey)
        found = RSAAlgorithm.to_jwk(public, as_dict=True) if is_rsa else ECAlgorithm.to_jwk(public, as_dict=True)
        return {**found, "kid": key_id, "use": "sig"}

    def add(self, key_id: str, *, curve: bool = False) -> None:
        """Make another key, which is not published yet."""
        self.keys[key_id] = ec.generate_private_key(ec.SECP256R1()) if curve else rsa.generate_private_key(65537, 2048)

    def token(
        self, user: str, key_id: str = "one", algorithm: str = "RS256", left_s: float = 300.0, **claims: Any
    ) -> str:
        every = {"iss": self.url, "aud": AUDIENCE, "sub": user, "exp": time.time() + left_s, **claims}
        kept = {name: value for name, value in every.items() if value is not None}
        return jwt.encode(kept, self.keys.get(key_id), algorithm, headers={"kid": key_id})
