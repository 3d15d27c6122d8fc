"""A package index as pip wants one (PEP 503), with one pure wheel."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile

from tests.conformance.gate.programs.web import Answer, Asked, Route

PREFIX = "/simple/"
PROJECT, VERSION = "yardgreeting", "1.0"
WHEEL = f"{PROJECT}-{VERSION}-py3-none-any.whl"


def wheel() -> bytes:
    """A wheel (PEP 427) whose module ``yardgreeting`` says ``from the index``."""
    info = f"{PROJECT}-{VERSION}.dist-info"
    files = {
        f"{PROJECT}.py": b"TEXT = 'from the index'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {PROJECT}\nVersion: {VERSION}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items()]
    files[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return packed.getvalue()


def index_route() -> Route:
    content = wheel()
    digest = hashlib.sha256(content).hexdigest()
    page = f'<!DOCTYPE html><html><body><a href="../{WHEEL}#sha256={digest}">{WHEEL}</a></body></html>'.encode()

    def answer(asked: Asked) -> Answer:
        path = asked.target.removeprefix(PREFIX).rstrip("/")
        if path == PROJECT:
            return 200, {"content-type": "text/html"}, page
        if path == WHEEL:
            return 200, {"content-type": "application/octet-stream"}, content
        return 404, {}, b""

    return answer


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
