"""A certificate authority of the tests, and certificates for names."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = datetime.timedelta(days=1)


class Authority:
    """Issues certificates that whoever trusts :attr:`ca_pem` takes for real."""

    def __init__(self, directory: Path, name: str = "tests of egress") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = _begun(self._name, self._key.public_key()).issuer_name(self._name)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(usage, critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False)
        self.certificate = builder.sign(self._key, hashes.SHA256())
        self.ca_pem = self.certificate.public_bytes(serialization.Encoding.PEM).decode()
        self.ca_file = directory / "ca.pem"
        self.ca_file.write_text(self.ca_pem)
        self.ca_file.chmod(0o644)

    def certify(self, name: str) -> tuple[Path, Path]:
        """Files with the certificate of ``name`` (a host name or an address) and its key, mode 0600."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _begun(_named(name), key.public_key()).issuer_name(self._name)
        builder = builder.add_extension(x509.SubjectAlternativeName([_subject(name)]), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        own = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(own, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        safe = name.replace("*", "any").replace(":", "_")
        cert_file, key_file = self._directory / f"{safe}.crt", self._directory / f"{safe}.key"
        cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_file.touch(0o600)
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return cert_file, key_file

    def context(self, name: str) -> ssl.SSLContext:
        """What a server called ``name`` shows. HTTP/1.1 only, as our servers speak."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.certify(name))
        context.set_alpn_protocols(["http/1.1"])
        return context


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _subject(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _begun(subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _DAY).not_valid_after(now + 30 * _DAY)
