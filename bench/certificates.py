"""An authority for an hour, and one certificate of it."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_HOUR = datetime.timedelta(hours=1)


def certify(directory: Path, addresses: Sequence[str], names: Sequence[str]) -> tuple[Path, Path]:
    """``authority.pem``, to be trusted, and ``server.pem``: key and certificate of all ``names`` and ``addresses``."""
    authority, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "skillyard bench")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
    who = [*map(x509.DNSName, names), *(x509.IPAddress(ipaddress.ip_address(text)) for text in addresses)]
    key_id = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    root = _begun(issuer, authority.public_key()).issuer_name(issuer)
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    root = root.add_extension(usage, critical=True).add_extension(key_id, critical=False)
    leaf = _begun(subject, own.public_key()).issuer_name(issuer)
    leaf = leaf.add_extension(x509.SubjectAlternativeName(who), critical=False)
    leaf = leaf.add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_id), critical=False)
    pem = serialization.Encoding.PEM
    trusted, served = directory / "authority.pem", directory / "server.pem"
    trusted.write_bytes(root.sign(authority, hashes.SHA256()).public_bytes(pem))
    served.touch(0o600)
    key = own.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    served.write_bytes(key + leaf.sign(authority, hashes.SHA256()).public_bytes(pem))
    return trusted, served


def _begun(subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _HOUR).not_valid_after(now + _HOUR)
