"""``[e2b_server]``: programs that were written for E2B."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from skillyard.config.section import Section
from skillyard.domain.errors import InvalidInput, shown

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:-]{0,127}")


def _templates(value: dict[str, str]) -> dict[str, str]:
    for name in value:
        if not _NAME.fullmatch(name):
            raise InvalidInput("e2b_server.templates", "must have names of templates, such as 'base'", shown(name))
    return value


class E2bServerSettings(Section):
    """The API of E2B, over sandboxes of this server."""

    model_config = ConfigDict(title="e2b_server")

    enabled: bool = Field(
        default=False, description="Whether the server answers the SDKs of E2B. `skillyard serve --e2b` sets it."
    )
    templates: Annotated[dict[str, str], AfterValidator(_templates)] = Field(
        default={"base": "base", "code-interpreter-v1": "base"},
        description="Templates by name, each the name of an environment or the digest of an image. Names of"
        " environments are templates without being listed.",
    )
    timeout_s: float = Field(
        default=300.0, gt=0, description="Time after which a sandbox is ended whose caller names none."
    )
    file_bytes: int = Field(default=1024 * 1024**2, ge=1, description="Largest file that is written in one request.")
