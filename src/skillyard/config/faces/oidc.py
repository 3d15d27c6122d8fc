"""``[oidc]``: tokens of an identity provider, beside those of this server."""

from __future__ import annotations

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from skillyard.config.section import Section
from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.principal import DEFAULT_PROJECT, Scope

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures with a key pair. With a shared secret each server that checks tokens could make them."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def is_secure(url: str) -> bool:
    """Returns whether nobody on the way can change what is fetched from ``url``."""
    parts = urlsplit(url)
    named = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    return named and bool(parts.hostname)


def _url(value: str) -> str:
    parts = urlsplit(value)
    if value and not (is_secure(value) and not parts.query and not parts.fragment):
        rule = "must be an https URL without query and fragment, or one of http on loopback"
        raise InvalidInput("oidc", rule, shown(value))
    return value


def _known(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value or not set(value) <= set(ALGORITHMS):
        raise InvalidInput("oidc.algorithms", f"must be among {', '.join(ALGORITHMS)}", shown(value))
    return value


Url = Annotated[str, AfterValidator(_url)]


class OidcSettings(Section):
    """Signed tokens (JWT) of one issuer. Without an issuer none is taken."""

    model_config = ConfigDict(title="oidc")

    issuer: Url = Field(
        default="",
        description="Issuer whose tokens are taken, letter for letter as in their `iss`. Its metadata name its keys"
        " unless `jwks_url` does.",
    )
    audience: str = Field(
        default="", description="Audience that a token must be made for (`aud`), such as the URL of `/mcp`."
    )
    jwks_url: Url = Field(default="", description="URL of the issuer's keys.")
    algorithms: Annotated[tuple[str, ...], AfterValidator(_known)] = Field(
        default=("RS256", "ES256"), description="Signatures that are taken; only those with a key pair can be."
    )
    scopes: tuple[Scope, ...] = Field(
        default=(Scope.DISCOVER, Scope.EXECUTE, Scope.RUN_CODE, Scope.BLOBS),
        description="Scopes of its users, as far as the `scope` of a token names them; a token without that claim has"
        " all of these.",
        json_schema_extra={"kind": "list of text"},
    )
    profile: str | None = Field(default=None, description="Profile of its users.")
    project: str = Field(default=DEFAULT_PROJECT, description="Project of its users.")
    keys_s: float = Field(
        default=86_400.0,
        ge=600,
        description="Longest trust in keys while the issuer cannot be asked for them; no token is taken then.",
    )
    leeway_s: float = Field(default=30.0, ge=0, le=300, description="Difference of clocks that is borne.")

    @model_validator(mode="after")
    def _check_audience(self) -> Self:
        if self.issuer and not self.audience:
            raise ValueError("names an issuer and no audience; tokens that it made for others would be taken")
        return self

    @property
    def on(self) -> bool:
        return bool(self.issuer)
