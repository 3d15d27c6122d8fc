"""The two files by which the command line and the client find a data directory's server and its token."""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from skillyard.domain.principal import Principal
from skillyard.ports.tokens import TokenStore

logger = logging.getLogger("skillyard.server")

OWNER = Principal("owner")
"""Whoever owns the data directory: all scopes, all skills."""


@contextmanager
def recorded_server(data_dir: Path, url: str) -> Iterator[None]:
    """``server.json`` says where the server is and which process, as long as the block lasts."""
    file, record = data_dir / "server.json", {"url": url, "pid": os.getpid()}
    write_private(file, json.dumps(record) + "\n")
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            if json.loads(file.read_text(encoding="utf-8")) == record:
                file.unlink()


async def ensure_owner_token(tokens: TokenStore, file: Path) -> None:
    """At the first start, make the owner's token and keep it in ``file``; later, leave both as they are.

    A token that was revoked, or whose file was removed, is not made again by itself. The file comes first, so
    that a start that was interrupted is completed by the next one. Raises InvalidInput for a file that holds no
    token.
    """
    text = file.read_text(encoding="utf-8").strip() if file.exists() else None
    if text is not None and await tokens.verify(text) is not None:
        return
    if any(info.principal.name == OWNER.name for info in await tokens.list()):
        logger.warning("the owner's token is not the one in its file, or has none", extra={"file": str(file)})
        return
    if text is None:
        text = f"sky_{secrets.token_urlsafe(32)}"
        write_private(file, text + "\n")
    await tokens.create(OWNER, text)


def write_private(file: Path, text: str) -> None:
    """Make or replace a file that only we can read, whole or not at all. Raises OSError."""
    new = file.with_name(f".{file.name}.new")
    with suppress(FileNotFoundError):
        new.unlink()
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a descriptor, not a path
            stream.write(text)
        new.replace(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
