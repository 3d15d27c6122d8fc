"""Wheels (PEP 427) made of values, honest ones and others."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterable, Mapping

EPOCH = (2020, 1, 1, 0, 0, 0)


def wheel_name(name: str, version: str = "1.0", tag: str = "py3-none-any") -> str:
    return f"{name.replace('-', '_')}-{version}-{tag}.whl"


def make_wheel(
    name: str,
    version: str = "1.0",
    *,
    requires: Iterable[str] = (),
    files: Mapping[str, bytes] | None = None,
    tag: str = "py3-none-any",
    record: bytes | None = None,
    wheel: bytes | None = None,
) -> bytes:
    """``files`` beside a module of the package's name that knows its ``VERSION``; ``record``, ``wheel`` take the place
    of what would be true."""
    contents = installed(name, version, requires=requires, files=files, tag=tag, wheel=wheel)
    if record is not None:
        contents[f"{info_of(name, version)}/RECORD"] = record
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in contents.items():
            archive.writestr(zipfile.ZipInfo(path, EPOCH), data)
    return packed.getvalue()


def installed(
    name: str,
    version: str = "1.0",
    *,
    requires: Iterable[str] = (),
    files: Mapping[str, bytes] | None = None,
    tag: str = "py3-none-any",
    wheel: bytes | None = None,
) -> dict[str, bytes]:
    """What such a wheel holds, and what an installer makes of it."""
    module, info = name.replace("-", "_"), info_of(name, version)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    contents = {
        f"{module}/__init__.py": f"VERSION = '{version}'\n".encode(),
        **(files or {}),
        f"{info}/METADATA": (metadata + "".join(f"Requires-Dist: {need}\n" for need in requires)).encode(),
        f"{info}/WHEEL": wheel or f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    lines = [f"{path},sha256={record_digest(data)},{len(data)}\n" for path, data in contents.items()]
    return {**contents, f"{info}/RECORD": "".join([*lines, f"{info}/RECORD,,\n"]).encode()}


def info_of(name: str, version: str) -> str:
    return f"{name.replace('-', '_')}-{version}.dist-info"


def record_digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
