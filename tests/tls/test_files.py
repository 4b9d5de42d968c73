"""Certificates from files: what is refused, and what happens when the files change."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from tests.tls.authorities import authority, of_broker
from tinymq.base.errors import AlreadyExists, InvalidConfig, NotFound
from tinymq.dev.certificates import CA_KEY, Authority, write_issued
from tinymq.net import tls_files
from tinymq.net.client_tls import paths_of
from tinymq.net.tls_files import CA, CERTIFICATE, KEY, Paths, TlsFiles

EMPTY = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def written(place: Path, broker_id: int = 1) -> Path:
    write_issued(place, authority().pem, authority().broker(broker_id))
    return place


def test_files_are_private(tmp_path: Path) -> None:
    place = written(tmp_path / "broker")
    assert place.stat().st_mode & 0o777 == 0o700
    assert [(place / name).stat().st_mode & 0o777 for name in (CA, CERTIFICATE, KEY)] == [0o600] * 3


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    place = written(tmp_path / "broker")
    (place / KEY).unlink()
    with pytest.raises(InvalidConfig, match=f"cannot read .*{KEY}") as refused:
        TlsFiles(Paths.of(place))
    assert "tinymq cert" in (refused.value.hint or "")


def test_a_key_that_everybody_may_read_is_refused(tmp_path: Path) -> None:
    place = written(tmp_path / "broker")
    (place / KEY).chmod(0o604)
    with pytest.raises(InvalidConfig, match="every user may read the key"):
        TlsFiles(Paths.of(place))
    (place / KEY).chmod(0o640)  # as Kubernetes mounts a secret
    TlsFiles(Paths.of(place))


@pytest.mark.parametrize("name", [CA, CERTIFICATE, KEY])
@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_damaged_file_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    place = written(tmp_path / "broker")
    (place / name).write_bytes(content)
    with pytest.raises(InvalidConfig, match=name):
        TlsFiles(Paths.of(place))


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    place, other = written(tmp_path / "one"), written(tmp_path / "two")
    (place / KEY).write_bytes((other / KEY).read_bytes())
    with pytest.raises(InvalidConfig, match="are no certificate with its key"):
        TlsFiles(Paths.of(place))


def test_an_encrypted_key_is_refused_without_a_question(tmp_path: Path) -> None:
    """OpenSSL would ask for the password on the terminal."""
    place = written(tmp_path / "broker")
    key = serialization.load_pem_private_key((place / KEY).read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    packed = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    (place / KEY).write_bytes(packed)
    with pytest.raises(InvalidConfig, match="is encrypted"):
        TlsFiles(Paths.of(place))


def test_new_files_are_used_and_damaged_ones_are_not(tmp_path: Path) -> None:
    said: list[InvalidConfig | None] = []
    place = written(tmp_path / "broker")
    files = TlsFiles(Paths.of(place), lambda where, error: said.append(error))
    first = files.current()
    assert files.current() is first
    (place / KEY).write_bytes(b"no key")
    assert files.current() is first
    assert files.generation == 0
    assert [type(error) for error in said] == [InvalidConfig]
    assert files.current() is first, "damaged files are reported once"
    assert len(said) == 1
    written(place)
    second = files.current()
    assert second is not first
    assert second.pem.certificate == (place / CERTIFICATE).read_bytes()
    assert files.generation == 1
    assert said[1:] == [None]


def test_a_refused_key_is_used_once_its_mode_is_mended(tmp_path: Path) -> None:
    """chmod changes neither the size nor the time of a file's content."""
    place = written(tmp_path / "broker")
    files = TlsFiles(Paths.of(place))
    other = written(tmp_path / "other")
    for name in (CERTIFICATE, KEY):
        (other / name).chmod(0o644)
        (other / name).replace(place / name)
    assert files.current().pem.key != (place / KEY).read_bytes()
    (place / KEY).chmod(0o600)
    assert files.current().pem.key == (place / KEY).read_bytes()


def test_a_change_that_keeps_time_and_size_is_seen(tmp_path: Path) -> None:
    """Tools that copy a file together with its times change it so."""
    said: list[InvalidConfig | None] = []
    place = written(tmp_path / "broker")
    files = TlsFiles(Paths.of(place), lambda where, error: said.append(error))
    before = (place / CA).stat()
    (place / CA).write_bytes(b"#" * before.st_size)
    os.utime(place / CA, ns=(before.st_atime_ns, before.st_mtime_ns))
    files.current()
    assert [type(error) for error in said] == [InvalidConfig]


def test_files_that_could_not_be_read_for_a_while_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing about the files changes when their disk, or a descriptor, is there again."""
    monkeypatch.setattr(tls_files, "RETRY_S", 0.0)
    said: list[InvalidConfig | None] = []
    place = written(tmp_path / "broker")
    files = TlsFiles(Paths.of(place), lambda where, error: said.append(error))
    first = files.current()
    written(place)
    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_bytes", _too_many_files)
        for _ in range(3):
            assert files.current() is first
    assert [type(error) for error in said] == [InvalidConfig], "it is reported once"
    assert files.current().pem.certificate == (place / CERTIFICATE).read_bytes()
    assert said[1:] == [None]


def _too_many_files(path: Path) -> bytes:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_removed_directory_changes_nothing(tmp_path: Path) -> None:
    place = written(tmp_path / "broker")
    files = TlsFiles(Paths.of(place))
    first = files.current()
    place.rename(tmp_path / "elsewhere")
    assert files.current() is first


def test_a_client_needs_no_certificate(tmp_path: Path) -> None:
    place = written(tmp_path / "broker")
    assert TlsFiles(paths_of("", str(place / CA))).current().pem.key == b""
    assert TlsFiles(paths_of(str(place), "")).current().pem.key == (place / KEY).read_bytes()
    (place / KEY).unlink()
    with pytest.raises(InvalidConfig, match=KEY):  # a certificate without its key is a mistake
        TlsFiles(paths_of(str(place), ""))
    (place / CERTIFICATE).unlink()
    assert TlsFiles(paths_of(str(place), "")).current().pem.certificate == b""


def test_keys_are_not_shown(tmp_path: Path) -> None:
    files = of_broker(tmp_path / "broker", 1)
    key = files.current().pem.key.decode().splitlines()[1]
    assert key not in repr(files.current())
    assert key not in repr(authority().broker(1))


def test_an_authority_is_not_replaced_by_mistake(tmp_path: Path) -> None:
    Authority.make("first").write(tmp_path / "ca")
    before = (tmp_path / "ca" / CA_KEY).read_bytes()
    with pytest.raises(AlreadyExists):
        Authority.make("second").write(tmp_path / "ca")
    assert (tmp_path / "ca" / CA_KEY).read_bytes() == before
    read = Authority.read(tmp_path / "ca")
    assert read.signed(read.broker(1).certificate)
    assert not read.signed(authority("another").broker(1).certificate)


def test_a_missing_or_damaged_authority_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no authority"):
        Authority.read(tmp_path / "ca")
    Authority.make("first").write(tmp_path / "ca")
    Authority.make("second").write(tmp_path / "other")
    (tmp_path / "ca" / CA_KEY).write_bytes((tmp_path / "other" / CA_KEY).read_bytes())
    with pytest.raises(InvalidConfig, match="do not belong together"):
        Authority.read(tmp_path / "ca")
    (tmp_path / "ca" / CA).write_bytes(b"nothing")
    with pytest.raises(InvalidConfig, match="cannot read the authority"):
        Authority.read(tmp_path / "ca")


@pytest.mark.parametrize("host", ["", "a" * 64 + ".example", "b\u00fccher" * 20])
def test_a_bad_host_is_refused(host: str) -> None:
    with pytest.raises(InvalidConfig, match="neither a host name nor an address"):
        authority().broker(1, (host,))


@pytest.mark.parametrize("days", [0, -1, 40_000])
def test_a_certificate_lasts_for_a_sensible_time(days: int) -> None:
    with pytest.raises(InvalidConfig, match="days"):
        authority().broker(1, days=days)
