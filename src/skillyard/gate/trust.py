"""The certificates that programs in a sandbox trust.

They are the host's, the operator's and their session's authority. The server writes them to one file for each
session, which the sandbox has read-only.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex

from skillyard.domain.network.session import TRUST_FILE
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import Mount

_SUFFIX = ".pem"
_KEPT = "kept-"
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine, Arch
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Fedora and its kin
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",
)
_NAMED_BY = (
    "SSL_CERT_FILE",  # OpenSSL, Python, Go, Ruby, rustls-native-certs, uv
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
    "CARGO_HTTP_CAINFO",
    "HTTPLIB2_CA_CERTS",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "NIX_SSL_CERT_FILE",
    "NPM_CONFIG_CAFILE",
    "BUNDLE_SSL_CA_CERT",
)

TRUST_ENV: Mapping[str, str] = dict.fromkeys(_NAMED_BY, TRUST_FILE)
"""Variables by which programs find the file inside."""


class TrustFiles:
    """Keeps the files of sessions in ``directory``, which becomes this server's alone (0700).

    Files that a crashed server left are removed, but for those of kept sessions, which have the session's key in their
    name. ``ca_file`` has further certificates that the operator trusts (PEM).
    """

    def __init__(self, directory: Path, ca_file: Path | None = None) -> None:
        self._directory = directory
        self._ca_file = ca_file
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        for left in directory.glob(f"*{_SUFFIX}"):
            if not left.name.startswith(_KEPT):
                left.unlink(missing_ok=True)

    def kept(self, key: str) -> Mount | None:
        """Returns the newest file of a kept session, None when it has none."""
        found = sorted(self._directory.glob(f"{_KEPT}{key}.*{_SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
        return Mount(Content(found[-1].name, found[-1]), TRUST_FILE) if found else None

    def forget(self, key: str) -> None:
        """Removes the files of a kept session. Idempotent."""
        for path in self._directory.glob(f"{_KEPT}{key}.*{_SUFFIX}"):
            path.unlink(missing_ok=True)

    def write(self, authority: bytes, key: str = "") -> Mount:
        """Writes a file with ``authority`` (PEM) in it, which never changes.

        ``key`` is that of a kept session. Raises OSError."""
        path = self._directory / f"{f'{_KEPT}{key}.' if key else ''}{token_hex(16)}{_SUFFIX}"
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o400)
        try:
            with os.fdopen(file, "wb") as out:
                out.write(b"\n".join((authority, operators(self._ca_file), system_certificates())))
                os.fchmod(out.fileno(), 0o444)
        except BaseException:
            path.unlink()
            raise
        return Mount(Content(path.name, path), TRUST_FILE)

    def remove(self, mount: Mount) -> None:
        """Removes a session's file; a sandbox that still has it keeps it. Idempotent."""
        if mount.source.path is not None:
            with contextlib.suppress(OSError):
                mount.source.path.unlink()


def system_certificates() -> bytes:
    """Returns the host's certificates in PEM; none where it keeps none in a usual place."""
    for path in (ssl.get_default_verify_paths().cafile, *_BUNDLES):
        if path is not None:
            with contextlib.suppress(OSError):
                return Path(path).read_bytes()
    return b""


def operators(ca_file: Path | None) -> bytes:
    """Returns the operator's certificates.

    They are read each time: a replaced file counts for the next session. Raises OSError."""
    return b"" if ca_file is None else ca_file.read_bytes()


def upstream_context(ca_pem: str = "") -> ssl.SSLContext:
    """Returns the context that verifies real servers and their names.

    It trusts the host's certificates and ``ca_pem``. It speaks TLS 1.2 or later and HTTP/1.1 only. Raises
    ssl.SSLError for anything but PEM."""
    context = ssl.create_default_context()
    context.hostname_checks_common_name = False
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    if not context.cert_store_stats()["x509_ca"] and (found := system_certificates()):
        context.load_verify_locations(cadata=found.decode("ascii", "ignore"))  # a Python with paths of its own
    if ca_pem:
        context.load_verify_locations(cadata=ca_pem)
    return context
