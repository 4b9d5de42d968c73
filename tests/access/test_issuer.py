"""JSON Web Tokens of an issuer, over real sockets, with a real HTTPS server for its keys."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.access.issuers import AUDIENCE, TestIssuer
from tests.access.secured import Secured
from tinymq import Client
from tinymq.access.issuer_keys import KEYS_BYTES_MAX, KEYS_MAX, _load, read_keys
from tinymq.base.config import BrokerConfig
from tinymq.base.errors import Denied, InvalidConfig, TinymqError, Unauthenticated
from tinymq.base.identity.issuer_config import IssuerConfig
from tinymq.testing import Cluster


class TrustingCluster(Cluster):
    """A cluster that takes the tokens of an issuer."""

    jwt = IssuerConfig()

    def _config(self, broker_id: int) -> BrokerConfig:
        return replace(super()._config(broker_id), jwt=self.jwt)


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestIssuer]:
    made = TestIssuer(tmp_path_factory.mktemp("issuer"))
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def s(issuer: TestIssuer) -> Iterator[Secured]:
    cluster = TrustingCluster(nodes=1)
    cluster.jwt = IssuerConfig(
        issuer=issuer.url, audience=AUDIENCE, keys=issuer.url, keys_ca=issuer.ca, user_pattern=r"(.+)@corp\.example",
        roles_claim="groups", skew_s=5.0,
    )  # fmt: skip
    with cluster:
        secured = Secured(cluster)
        secured.root.access.create_user("anna")
        secured.allow("anna", "write topic:orders")
        secured.root.access.create_user("readers", role=True)
        secured.root.access.grant("readers", "read", "topic:orders", role=True)
        secured.wait_heard()
        yield secured


ANNA = "anna@corp.example"


def who(s: Secured, token: str) -> Any:
    """The user that a token names, or the error."""
    with s.cluster.client(token=token, request_timeout_ms=3000) as mq:
        try:
            return mq.access.who_am_i()
        except TinymqError as error:
            return error


def refusal(s: Secured, token: str) -> str:
    error = who(s, token)
    assert isinstance(error, Unauthenticated), error
    return error.message


def test_a_user_and_its_roles_come_from_the_claims(s: Secured, issuer: TestIssuer) -> None:
    me = who(s, issuer.token(ANNA, groups=["readers", 7]))
    assert (me.name, me.proof, me.roles) == ("anna", "jwt", ("readers",))
    assert 290 < me.expires_s <= 305
    with s.cluster.client(token=issuer.token(ANNA, groups=["readers"])) as mq, mq.reader("orders") as reader:
        mq.send("orders", b"by anna")
        mq.producer().send("orders", b"by anna").result()
        assert next(reader).value == b"by anna"
    with s.cluster.client(token=issuer.token("bert@corp.example")) as mq, pytest.raises(Denied, match="bert"):
        mq.send("orders", b"by bert")


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"aud": "another service"}, "Audience doesn't match"),
        ({"aud": None}, 'missing the "aud" claim'),
        ({"iss": "https://evil.example"}, "Invalid issuer"),
        ({"exp": None}, 'missing the "exp" claim'),
        ({"left_s": -10.0}, "the jwt of 'anna' has expired on 20"),
        ({"nbf": time.time() + 3600}, "it is not valid yet"),
        ({"exp": 1 << 50}, "its times are no numbers"),
        ({"user": "anna@evil.example"}, "names no user of this cluster"),
        ({"user": "an/na@corp.example"}, "the JWT names no user"),
        ({"user": ["anna"]}, ""),
    ],
)
def test_a_token_for_somebody_else_or_another_time_counts_for_nothing(
    s: Secured, issuer: TestIssuer, claims: dict[str, Any], said: str
) -> None:
    token = issuer.token(**{"user": ANNA, **claims}) if claims.get("user") != ["anna"] else issuer.token(ANNA, sub=7)
    assert said in refusal(s, token)


def test_the_skew_is_granted(s: Secured, issuer: TestIssuer) -> None:
    assert who(s, issuer.token(ANNA, left_s=-1.0)).name == "anna"


def packed(part: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def test_no_other_algorithm_counts(s: Secured, issuer: TestIssuer) -> None:
    """`none`; the public key as the secret of HMAC; another kind of signature by a key that is published."""
    claims = packed({"iss": issuer.url, "aud": AUDIENCE, "sub": ANNA, "exp": time.time() + 300})
    for name in ("none", "None", "nOnE"):
        unsigned = f"{packed({'alg': name, 'kid': 'one'})}.{claims}."
        assert "and not by RS256" in refusal(s, unsigned)
    pem = issuer.keys["one"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for secret in (pem, pem.strip(), json.dumps(issuer.jwk("one")).encode()):
        for claimed in ("HS256", "RS256"):
            signed = f"{packed({'alg': claimed, 'kid': 'one'})}.{claims}"
            mac = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
            assert refusal(s, f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}")
    issuer.add("curve", curve=True)
    assert "and not by RS256" in refusal(s, issuer.token(ANNA, "curve", "ES256"))


def test_a_changed_token_and_nonsense_count_for_nothing(s: Secured, issuer: TestIssuer) -> None:
    head, claims, signature = issuer.token("bert@corp.example").split(".")
    forged = packed({"iss": issuer.url, "aud": AUDIENCE, "sub": ANNA, "exp": time.time() + 300})
    assert "Signature verification failed" in refusal(s, f"{head}.{forged}.{signature}")
    for nonsense in ("a.b.c", "..", f"{head}.{claims}.", f"{packed([])}.{claims}.{signature}", "x." * 2 + "y" * 5000):
        assert refusal(s, nonsense)


def test_keys_are_rotated_without_a_restart(s: Secured, issuer: TestIssuer) -> None:
    """A new key is fetched when a token names it; a key that is gone ends what it has signed, open streams included."""
    issuer.add("two")
    issuer.published = ["one", "two"]
    keys = s.cluster.brokers[1].gate._issuer.keys  # type: ignore[union-attr]
    keys._tried_s = -1e9  # as if the last fetch were long ago
    assert who(s, issuer.token(ANNA, "two")).name == "anna"
    with s.cluster.client(token=issuer.token(ANNA, "two")) as mq, mq.producer() as producer:
        producer.send("orders", b"x").result()
        issuer.published = ["one"]
        s.cluster.call(lambda: keys._wake.set())
        s.cluster.wait_until(lambda: keys.get("two") is None)
        with pytest.raises(Unauthenticated, match="not the issuer's any more"):
            producer.send("orders", b"x").result()
    fetched = issuer.fetches
    assert "which its issuer does not have" in refusal(s, issuer.token(ANNA, "two"))
    for number in range(5):  # a stranger's invented key ids do not make the broker fetch each time
        assert refusal(s, named_otherwise(issuer, f"invented-{number}"))
    assert issuer.fetches <= fetched + 1


def named_otherwise(issuer: TestIssuer, key_id: str) -> str:
    """A token that says that another key has signed it."""
    issuer.keys[key_id] = issuer.keys["one"]
    return issuer.token(ANNA, key_id)


def test_an_issuer_that_fails_or_lies_leaves_the_last_keys(s: Secured, issuer: TestIssuer) -> None:
    keys = s.cluster.brokers[1].gate._issuer.keys  # type: ignore[union-attr]
    try:
        for answer in (b"", b"{}", b"[]", b'{"keys": 7}', b"x" * (KEYS_BYTES_MAX + 1)):
            issuer.answer, before = answer, issuer.fetches
            s.cluster.call(lambda: keys._wake.set())
            s.cluster.wait_until(lambda before=before: issuer.fetches > before and not keys._trying)  # type: ignore[misc]
            assert who(s, issuer.token(ANNA)).name == "anna"
    finally:
        issuer.answer = None


def test_the_fetch_trusts_its_authority_only_and_follows_nobody(issuer: TestIssuer) -> None:
    config = IssuerConfig(issuer=issuer.url, audience=AUDIENCE, keys=issuer.url, keys_ca=issuer.ca)
    assert _load(config) == issuer.document()
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        _load(replace(config, keys_ca=""))
    with pytest.raises(OSError, match="302"):
        _load(replace(config, keys=issuer.url.replace("/keys", "/moved")))


def test_keys_that_cannot_sign_for_the_issuer_are_left_out(issuer: TestIssuer) -> None:
    good = issuer.jwk("one")
    others: list[dict[str, Any]] = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "symmetric"}, {**good, "kid": "enc", "use": "enc"},
        {**good, "kid": "other", "alg": "RS512"}, {**good, "kid": "private", "d": "AA"},
        {"kty": "RSA", "kid": "broken"},
    ]  # fmt: skip
    assert list(read_keys(json.dumps({"keys": [good, *others]}).encode(), "RS256")) == ["one"]
    with pytest.raises(ValueError, match="more than"):
        read_keys(json.dumps({"keys": [good] * (KEYS_MAX + 1)}).encode(), "RS256")


def test_a_token_file_is_read_again_when_it_changes(s: Secured, issuer: TestIssuer, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(issuer.token(ANNA, left_s=1.0) + "\n")
    with s.cluster.client(token_file=str(path)) as mq, mq.producer() as producer:
        ends_s = time.monotonic() + 9.0  # beyond the first token's end, and the skew
        number = 0
        while time.monotonic() < ends_s:
            producer.send("orders", b"x").result()
            mq.send("orders", b"x")
            number += 1
            if number == 10:
                path.write_text(issuer.token(ANNA))
    path.chmod(0o604)
    with s.cluster.client(token_file=str(path)) as mq, pytest.raises(InvalidConfig, match="every user may read"):
        mq.access.who_am_i()
    with pytest.raises(InvalidConfig, match="a token and a token_file"):
        Client("127.0.0.1:1", token="tmq_x", token_file=str(path))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"audience": ""}, "without jwt.audience"),
        ({"keys": ""}, "without jwt.keys"),
        ({"keys": "http://issuer.example/keys"}, "others on the way"),
        ({"keys": "file:///etc/keys"}, "others on the way"),
        ({"algorithm": "HS256"}, "jwt.algorithm is 'HS256'"),
        ({"algorithm": "none"}, "jwt.algorithm is 'none'"),
        ({"user_pattern": "("}, "no regular expression"),
        ({"user_pattern": "anna"}, "not exactly one group"),
        ({"skew_s": 3600.0}, "skew_s"),
        ({"issuer": ""}, "without jwt.issuer"),
    ],
)
def test_a_careless_configuration_is_refused(settings: dict[str, Any], said: str) -> None:
    good: dict[str, Any] = {"issuer": "i", "audience": "a", "keys": "/etc/keys.json"}
    IssuerConfig(**good)
    with pytest.raises(InvalidConfig, match=said):
        IssuerConfig(**{**good, **settings})
