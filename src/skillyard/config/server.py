"""``[server]``: how ``skillyard serve`` listens, logs and stops."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from skillyard.config.section import MIB, Section


class ServerSettings(Section):
    """How the server listens, logs and stops."""

    model_config = ConfigDict(title="server")

    host: str = Field(
        default="127.0.0.1",
        description="Address that the server listens on. Put a proxy with TLS before it where others are to reach it.",
    )
    port: int = Field(
        default=8765,
        ge=0,
        le=65535,
        description="Port that the server listens on; 0 takes a free one.",
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(), description="Further names that requests may address the server by, such as a proxy's."
    )
    open_metrics: bool = Field(
        default=False, description="Whether `/metrics` is shown without a token. Set it in a closed network."
    )
    body_bytes: int = Field(default=32 * MIB, ge=1024, description="Largest body of a JSON request.")
    grace_s: float = Field(
        default=30.0,
        ge=0,
        description="Time that runs get to end in when the server stops; then they are cancelled.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level that is logged."
    )
    log_format: Literal["json", "console"] = Field(
        default="json", description="Form of a log line: `json` for machines, `console` for people."
    )
