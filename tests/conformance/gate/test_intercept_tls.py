"""Who a gate is for the program, and whom it takes for the real server, where it ends TLS."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import socket
import ssl
import stat
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from skillyard.domain.network.rule import parse_rule
from skillyard.domain.network.session import TRUST_FILE, EgressLimits
from skillyard.gate.tls.authority import Authority, NotBound
from skillyard.gate.tls.intercept import TlsEnd, TlsFault
from skillyard.gate.trust import TRUST_ENV, TrustFiles, system_certificates
from tests.conformance.gate.intercepted import TOKEN, Gate, Outside, all_of, server
from tests.conformance.gate.programs.authority import Authority as OtherAuthority

DAY = datetime.timedelta(days=1)


@pytest.fixture
def gate(outside: Outside) -> Iterator[Gate]:
    outside.seen.clear()
    with outside.gate() as gate:
        yield gate


def request(gate: Gate, port: int) -> bytes:
    lines = ("GET /hello HTTP/1.1", f"Host: api.test:{port}", f"X-Api-Key: {gate.placeholder('KEY')}", "", "")
    return "\r\n".join(lines).encode()


def wrapping(context: ssl.SSLContext, heard: list[bytes]) -> Callable[[socket.socket], None]:
    def serve(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_side=True) as tls:
            heard.append(tls.recv(1 << 16))

    return serve


def self_signed(name: str, directory: Path, *, until: datetime.timedelta = DAY) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 10 * DAY)
        .not_valid_after(now + until)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return serving(certificate, key, directory)


def serving(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, directory: Path) -> ssl.SSLContext:
    file = directory / "server.pem"
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    file.write_bytes(certificate.public_bytes(pem) + key.private_bytes(pem, form, serialization.NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


KINDS = ("another name", "unknown authority", "self-signed", "expired", "plain", "old", "mute")


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_cannot_show_who_it_is_gets_nothing(
    gate: Gate, outside: Outside, tmp_path: Path, kind: str
) -> None:
    heard: list[bytes] = []
    contexts: dict[str, Callable[[], ssl.SSLContext]] = {
        "another name": lambda: outside.authority.context("other.test"),
        "unknown authority": lambda: OtherAuthority(tmp_path, "nobody's").context("api.test"),
        "self-signed": lambda: self_signed("api.test", tmp_path),
        "expired": lambda: self_signed("api.test", tmp_path, until=-DAY),
        "old": lambda: old(outside.authority.context("api.test")),
    }
    serve = {"plain": plain, "mute": mute}.get(kind) or wrapping(contexts[kind](), heard)
    with server(serve) as port, gate.tls("api.test", port) as sock:
        sock.sendall(request(gate, port))
        told = all_of(sock)
    assert b" 502 " in told
    assert b"TLS with api.test" in told
    assert all(data == b"" for data in heard)
    (logged,) = gate.logged(lambda one: one.reason.startswith("TLS with api.test"))
    assert logged.secrets == ()


def test_nothing_is_made_of_a_request_before_the_server_has_shown_who_it_is(gate: Gate, outside: Outside) -> None:
    asked = threading.Event()
    heard: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        assert asked.wait(20)
        wrapping(outside.authority.context("other.test"), heard)(sock)

    with server(serve) as port, gate.tls("api.test", port) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(request(gate, port))
        for _ in range(10):  # turns of the gate's loop, in which it hears that
            gate.log()
        asked.set()
        assert b" 502 " in all_of(sock)
    assert b"".join(heard) == b""
    (logged,) = gate.logged(lambda one: one.reason.startswith("TLS with api.test"))
    assert logged.secrets == ()


def old(context: ssl.SSLContext) -> ssl.SSLContext:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def plain(sock: socket.socket) -> None:
    sock.recv(4096)
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


def mute(sock: socket.socket) -> None:
    sock.recv(4096)


def test_a_server_that_only_speaks_http2_is_not_spoken_to(gate: Gate, outside: Outside) -> None:
    heard: list[bytes] = []
    context = outside.authority.context("api.test")
    context.set_alpn_protocols(["h2"])
    with server(wrapping(context, heard)) as port, gate.tls("api.test", port) as sock:
        assert sock.selected_alpn_protocol() == "http/1.1"
        sock.sendall(request(gate, port))
        told = all_of(sock)
    assert TOKEN.encode() not in told


def test_programs_that_prefer_http2_get_http1(gate: Gate, outside: Outside) -> None:
    context = gate.trusting()
    context.set_alpn_protocols(["h2", "http/1.1"])
    with gate.tls("api.test", outside.https.port, context) as sock:
        assert sock.selected_alpn_protocol() == "http/1.1"
        assert sock.version() == "TLSv1.3"
        certificate = sock.getpeercert()
    assert certificate is not None
    assert certificate["subjectAltName"] == (("DNS", "api.test"),)


def test_an_old_version_of_tls_is_not_spoken(gate: Gate, outside: Outside) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        gate.tls("api.test", outside.https.port, old(gate.trusting()))
    assert "unsupported protocol" in gate.refusals()[0]


@pytest.mark.parametrize("name", ["other.test", "deep.api.test", None])
def test_the_server_name_must_be_the_name(gate: Gate, outside: Outside, name: str | None) -> None:
    context = gate.trusting()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with gate.tunnel("api.test", outside.https.port) as sock, pytest.raises(ssl.SSLError, match=r"(?i)access.denied"):
        context.wrap_socket(sock, server_hostname=name)
    said = f"TLS for {name}, not api.test" if name else "TLS without a server name (SNI)"
    assert gate.refusals() == [said]
    assert outside.seen == []


def test_a_certificate_is_not_shown_to_who_says_another_name() -> None:
    """Whatever judged the first words."""
    authority = Authority([parse_rule("*.api.test")])
    for said, shown in (("deep.api.test", True), ("other.api.test", False)):
        context = ssl.create_default_context(cadata=authority.pem.decode())
        context.check_hostname = False
        client, server = TlsEnd(context, said), TlsEnd(authority.context("deep.api.test"))
        with contextlib.nullcontext() if shown else pytest.raises(TlsFault):
            for _ in range(2):
                for one, other in ((client, server), (server, client)):
                    if words := one.take():
                        other.hear(words)
        assert server.ready == shown


def test_no_tls_at_all_is_refused(gate: Gate, outside: Outside) -> None:
    with gate.tunnel("api.test", outside.https.port) as sock:
        sock.sendall(b"\x16\x03\x01\x00\x05hello")
        assert all_of(sock).startswith(b"\x15\x03")
    assert gate.refusals()


def test_a_program_that_does_not_trust_the_gate_is_told_of_in_the_log(gate: Gate, outside: Outside) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        gate.tls("api.test", outside.https.port, outside.client_context())
    assert "may not trust the gate" in gate.refusals()[0]


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01", "hello"])
def test_a_slow_handshake_ends(outside: Outside, first: bytes | str) -> None:
    limits = EgressLimits(header_s=0.3, idle_s=1.0)
    said = client_hello() if isinstance(first, str) else first  # made ahead: it may take longer than a header may
    with outside.gate(limits=limits) as gate, gate.tunnel("api.test", outside.https.port) as sock:
        sock.sendall(said)
        all_of(sock)
        gate.logged(lambda one: "within" in one.reason)


def client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="api.test")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_hands_are_shaken_once(gate: Gate, outside: Outside, tmp_path: Path) -> None:
    """RFC 5746: openssl asks for a renegotiation on a line with R alone."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("needs openssl")
    trust = tmp_path / "ca.pem"
    trust.write_bytes(gate.trust)
    target = f"api.test:{outside.https.port}"
    command = [openssl, "s_client", "-connect", target, "-proxy", gate.proxy.removeprefix("http://")]
    options = ["-servername", "api.test", "-CAfile", str(trust), "-verify_return_error", "-tls1_2"]
    ended = subprocess.run([*command, *options], input=b"R\n", capture_output=True, timeout=20, check=False)
    said = ended.stdout + ended.stderr
    assert b"Verify return code: 0" in said
    assert b"RENEGOTIATING" in said
    assert b"no renegotiation" in said.lower()


def test_the_authority_cannot_stand_for_other_hosts(tmp_path: Path) -> None:
    """Whoever had its key could sign for what it is constrained to and nothing else."""
    authority = Authority([parse_rule("api.test"), parse_rule("*.deep.test")])
    for name, trusted in {
        "api.test": True, "x.deep.test": True, "other.test": False, "pi.test": False, "test": False,
    }.items():  # fmt: skip
        assert accepted(authority, name, tmp_path) is trusted, name
    with pytest.raises(NotBound):
        authority.context("other.test")
    with pytest.raises(NotBound):
        authority.context("deep.test")


def accepted(authority: Authority, name: str, directory: Path) -> bool:
    """Whether a client that trusts the authority takes a server for ``name``, signed with the authority's own key."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    parent = x509.load_pem_x509_certificate(authority.pem)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(parent.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
        .sign(authority._key, hashes.SHA256())
    )
    context = serving(certificate, key, directory)
    client = ssl.create_default_context(cadata=authority.pem.decode())
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    far: list[bytes] = []
    with server(wrapping(context, far)) as port, socket.create_connection(("127.0.0.1", port), 10) as sock:
        try:
            client.wrap_socket(sock, server_hostname=name).close()
        except ssl.SSLCertVerificationError as error:
            return "subtree" not in error.verify_message
    return True


@pytest.mark.parametrize("rule", ["*", "192.0.2.7", "10.0.0.0/8", "!api.test"])
def test_an_authority_is_for_names(rule: str) -> None:
    with pytest.raises(ValueError, match="names and domains"):
        Authority([parse_rule(rule)])


def test_what_python_checks_strictly_holds() -> None:
    """Python 3.13's default: RFC 5280's demands on the certificates' extensions."""
    authority = Authority([parse_rule("api.test")])
    client = ssl.create_default_context(cadata=authority.pem.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    far: list[bytes] = []
    serve = wrapping(authority.context("api.test"), far)
    with server(serve) as port, socket.create_connection(("127.0.0.1", port), 10) as sock:
        client.wrap_socket(sock, server_hostname="api.test").close()


def test_the_trust_file(tmp_path: Path) -> None:
    ca_file = tmp_path / "operator.pem"
    ca_file.write_bytes(b"operator's certificates\n")
    directory = tmp_path / "run" / "egress"
    directory.mkdir(parents=True)
    left = directory / "of-a-server-that-crashed.pem"
    left.touch()
    files = TrustFiles(directory, ca_file)
    assert not left.exists()
    mount = files.write(b"the authority\n")
    assert mount.target == TRUST_FILE
    assert mount.source.path is not None
    assert mount.source.path.read_bytes() == b"the authority\n\noperator's certificates\n\n" + system_certificates()
    assert stat.S_IMODE(mount.source.path.stat().st_mode) == 0o444
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert TRUST_ENV["SSL_CERT_FILE"] == TRUST_ENV["NODE_EXTRA_CA_CERTS"] == TRUST_FILE
    files.remove(mount)
    files.remove(mount)
    assert os.listdir(directory) == []
