"""A session's own certificate authority.

By its name constraints, it is bound to the hosts of the session's secrets. See RFC 5280 §4.2.1.10. Keys live in this
process's memory alone. Python reads certificates and keys from paths only, so it gets those of pipes, which no limit
on files and no rule about directories concerns.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from skillyard.domain.network.rule import Rule

LIFETIME = timedelta(hours=48)
"""Beyond any run's deadline; the certificates inside cannot be changed while a sandbox has them."""
_SKEW = timedelta(minutes=5)
_MOST_NAMES = 64
_CURVE = ec.SECP256R1()
_NO_ADDRESSES = tuple(x509.IPAddress(ipaddress.ip_network(text)) for text in ("0.0.0.0/0", "::/0"))


class NotBound(Exception):
    """The authority does not sign for this name."""


class Authority:
    """Signs for ``hosts``, which are rules with a name or a domain.

    ``before`` is the :attr:`kept` form of an authority, which goes on if it is one for the same hosts. Raises
    ValueError for other hosts: an authority for everything, or for an address, could stand for hosts that no secret is
    bound to."""

    def __init__(self, hosts: Sequence[Rule], before: str = "") -> None:
        if not hosts or any(rule.deny or rule.everything or not rule.name for rule in hosts):
            raise ValueError("an authority signs for names and domains only")
        self._hosts = tuple(hosts)
        self._name = _subject("skillyard session authority")
        certificate = x509.load_pem_x509_certificate(before.encode("ascii")) if before else None
        if certificate is not None and _constraints(certificate) == {rule.name for rule in hosts}:
            self._key = _key_in(before)
            self._certificate = certificate
            self._until = certificate.not_valid_after_utc
        else:
            self._key = ec.generate_private_key(_CURVE)
            self._until = datetime.now(UTC) + LIFETIME
            self._certificate = self._signed(self._own(), self._name, self._key.public_key())
        self._contexts: dict[str, ssl.SSLContext] = {}

    @property
    def kept(self) -> str:
        """Returns certificate and key (PEM), by which it can go on in another process."""
        return (self.pem + _private(self._key)).decode("ascii")

    @property
    def pem(self) -> bytes:
        """Returns the certificate to trust, without its key."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def context(self, name: str) -> ssl.SSLContext:
        """Returns the context of the server's side for clients that ask for ``name``.

        It speaks TLS 1.2 or later and HTTP/1.1 only, and alerts a client that names another host in the handshake.
        Raises NotBound."""
        if not any(rule.has_name(name) for rule in self._hosts):
            raise NotBound(name)
        if name not in self._contexts:
            if len(self._contexts) >= _MOST_NAMES:
                del self._contexts[next(iter(self._contexts))]
            self._contexts[name] = self._made(name)
        return self._contexts[name]

    def _made(self, name: str) -> ssl.SSLContext:
        key = ec.generate_private_key(_CURVE)
        leaf = self._signed(_leaf(name), _subject("skillyard gate"), key.public_key())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
        context.num_tickets = 0
        context.set_alpn_protocols(["http/1.1"])
        context.sni_callback = _only(name)
        _load(context, leaf.public_bytes(serialization.Encoding.PEM), _private(key))
        return context

    def _own(self) -> list[tuple[x509.ExtensionType, bool]]:
        domains = sorted({rule.name for rule in self._hosts})
        return [
            (x509.BasicConstraints(ca=True, path_length=0), True),
            (x509.NameConstraints([x509.DNSName(domain) for domain in domains], _NO_ADDRESSES), True),
            (_usage(signs_certificates=True), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False),
        ]

    def _signed(
        self, extensions: list[tuple[x509.ExtensionType, bool]], subject: x509.Name, key: ec.EllipticCurvePublicKey
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._until - LIFETIME - _SKEW)
            .not_valid_after(self._until)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(self._key, hashes.SHA256())


def _leaf(name: str) -> list[tuple[x509.ExtensionType, bool]]:
    return [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.SubjectAlternativeName([x509.DNSName(name)]), False),
        (_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
    ]


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _constraints(certificate: x509.Certificate) -> set[str]:
    """Returns the names and domains that an authority of ours signs for."""
    found = certificate.extensions.get_extension_for_class(x509.NameConstraints).value
    return {name.value for name in found.permitted_subtrees or ()}


def _key_in(pem: str) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem[pem.index("-----BEGIN PRIVATE KEY") :].encode("ascii"), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _only(name: str) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], int | None]:
    def check(_: ssl.SSLObject, said: str | None, __: ssl.SSLContext) -> int | None:
        return None if said is not None and said.lower() == name else ssl.ALERT_DESCRIPTION_ACCESS_DENIED

    return check


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    with _path_of(certificate) as certificate_path, _path_of(key) as key_path:
        context.load_cert_chain(certificate_path, key_path)


@contextmanager
def _path_of(data: bytes) -> Iterator[str]:
    """Yields a path that reads as ``data``, less than a pipe holds, once."""
    source, sink = os.pipe()
    try:
        os.write(sink, data)
        os.close(sink)
        yield f"/proc/self/fd/{source}"
    finally:
        os.close(source)
