"""Why TLS failed, in words that name both sides: expected and presented names, dates, authorities.

The libraries say only that a certificate was not accepted. So the reason is looked for afterwards, by asking the server
for its certificate again, without trusting it.
"""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime

from tinymq.net.tls_files import Loaded
from tinymq.net.tls_names import Certificate, end_of, hosts_of, shown, uris_of

PROBE_S = 1.0
REFUSED_S = 0.5  # after its handshake, for a server to refuse this side's certificate
NO_CERTIFICATE = "it wants a certificate of the client's: tinymq cert user NAME makes one"
ENDS_CLIENTS = "it ends the connection after TLS's handshake: it may not know who signed this side's certificate"
RENEW = "replace the files in the client's tls_dir; it need not be restarted"
AUTHORITIES_SHOWN = 5
_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, which Python does not name
_PLAIN = ("wrong_version_number", "record_layer_failure", "packet_length_too_long", "http_request")

EXPIRED, NOT_YET_VALID = 10, 9  # X509_V_ERR_*
HOSTNAME = (62, 64)  # a name, an address


def explain(host: str, port: int, files: Loaded, server_name: str = "", timeout_s: float = PROBE_S) -> str:
    """Return why a TLS connection to this server fails; "" if it succeeds, or if the reason is not TLS. Blocks."""
    name = server_name or host
    try:
        with (
            socket.create_connection((host, port), timeout_s) as sock,
            files.dials.wrap_socket(sock, server_hostname=name) as tls,
        ):
            return _said_afterwards(tls, files.pem.certificate)
    except ssl.SSLCertVerificationError as error:
        return _of_certificate(error, name, _presented(host, port, timeout_s), files)
    except ssl.SSLError as error:
        return reason_of(error)
    except OSError:
        return ""


def _said_afterwards(tls: ssl.SSLSocket, certificate: bytes) -> str:
    """A server of TLS 1.3 refuses a client's certificate after the client has finished its handshake. Many ends only
    close the connection then. In that case only the certificate itself may show the fault."""
    try:
        tls.settimeout(REFUSED_S)
        if tls.recv(1):
            return ""
        reason = ENDS_CLIENTS
    except ssl.SSLError as error:
        reason = reason_of(error)
    except OSError:
        return ""
    ends = end_of(certificate) if certificate else None
    if ends is not None and ends < datetime.now(UTC):
        return f"this side's certificate has expired on {shown(ends)}: {RENEW}"
    return reason if certificate or reason is not ENDS_CLIENTS else NO_CERTIFICATE


def reason_of(error: ssl.SSLError) -> str:
    """Return what an error of TLS means, as far as it alone says it."""
    name = (error.reason or "").lower()
    if name in _PLAIN:
        return "it does not speak TLS; connect without it, or set the broker's security"
    if "certificate_required" in name:
        return NO_CERTIFICATE
    if "unknown_ca" in name:
        return "it does not know the authority that signed this side's certificate"
    if "certificate_expired" in name:
        return "it says that this side's certificate has expired"
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code == EXPIRED:
        return "the other end's certificate has expired"
    if "unsupported_protocol" in name or "protocol_version" in name:
        return "it does not speak TLS 1.3"
    return f"TLS failed: {error.reason or error}"


def _of_certificate(error: ssl.SSLCertVerificationError, name: str, presented: Certificate, files: Loaded) -> str:
    if error.verify_code == EXPIRED:
        return f"its certificate has expired{_since(presented, 'notAfter')}"
    if error.verify_code == NOT_YET_VALID:
        return f"its certificate is valid only from{_since(presented, 'notBefore').removeprefix(' on')} on"
    if error.verify_code in HOSTNAME:
        names = ", ".join((*hosts_of(presented), *uris_of(presented))) or "no name"
        return f"its certificate is for {names}, not for {name}"
    issuer = _name(presented.get("issuer", ()))
    signed = f" {issuer!r} signed it," if issuer else ""
    trusted = sorted({_name(each.get("subject", ())) for each in files.dials.get_ca_certs()})
    expected = ", ".join(map(repr, trusted[:AUTHORITIES_SHOWN]))
    if issuer in trusted:
        expected += ", of that name but with another key"
    reason = error.verify_message
    return f"its certificate is not trusted:{signed} which ca.crt does not have: it has {expected} ({reason})"


def _since(certificate: Certificate, field: str) -> str:
    text = certificate.get(field)
    if not text:
        return ""
    return f" on {shown(datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC))}"


def _name(parts: object) -> str:
    """The common name in an issuer or a subject as Python presents it."""
    assert isinstance(parts, tuple)
    return next((value for part in parts for key, value in part if key == "commonName"), "")


def _presented(host: str, port: int, timeout_s: float) -> Certificate:
    """Return the certificate that a server presents, whatever it is worth. {} if it presents none."""
    try:
        der = ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, port), timeout=timeout_s))
        # Python reads the fields of a certificate only if it trusts it: so trust this one, for this one question.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags = ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_CHECK_TIME)
        context.load_verify_locations(cadata=der)
        with (
            socket.create_connection((host, port), timeout_s) as sock,
            context.wrap_socket(sock) as tls,
        ):
            return tls.getpeercert() or {}
    except (OSError, ValueError):
        return {}
