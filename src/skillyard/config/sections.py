"""``[server]``, and all sections together as the engine takes them."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from skillyard.config.backends import (
    E2bSettings,
    GvisorSettings,
    MicrovmSettings,
    NativeSettings,
    OciSettings,
    OpenSandboxSettings,
)
from skillyard.config.commands import CommandSettings, JailSettings
from skillyard.config.faces.e2b import E2bServerSettings
from skillyard.config.faces.mcp import McpSettings
from skillyard.config.faces.oidc import OidcSettings
from skillyard.config.limits import AdmissionSettings, LimitSettings
from skillyard.config.network import NetworkSettings
from skillyard.config.packages import EnvironmentSettings, PackagesSettings, with_bundled
from skillyard.config.policy import PolicySettings, SandboxSettings, TrustSettings
from skillyard.config.profiles import ProfileSettings, named
from skillyard.config.secrets import SecretSettings
from skillyard.config.section import MIB, Section
from skillyard.config.services import ServiceSettings
from skillyard.config.sessions import SessionSettings
from skillyard.config.srt import SrtSettings
from skillyard.config.storage import BlobSettings, OutputSettings, RecordSettings, SchemaSettings, SkillsSettings
from skillyard.domain.errors import InvalidInput, shown

_ORIGIN = re.compile(r"https?://(?:[a-z0-9.-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[1-9][0-9]{0,4})?")


def _origins(value: tuple[str, ...]) -> tuple[str, ...]:
    for each in value:
        if not _ORIGIN.fullmatch(each):
            rule = "must be origins of web pages in lower case, such as 'https://app.example.com', without a path"
            raise InvalidInput("server.allowed_origins", rule, shown(each))
    return value


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
    allowed_origins: Annotated[tuple[str, ...], AfterValidator(_origins)] = Field(
        default=(),
        description="Web pages that may call, by origin such as `https://app.example.com`: clients in browsers, and "
        "pages of a proxy with TLS. Each call needs its token all the same.",
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


Environments = Annotated[dict[str, EnvironmentSettings], AfterValidator(with_bundled)]

Profiles = Annotated[dict[str, ProfileSettings], AfterValidator(named)]


class Sections(Section):
    """Every section, with the defaults of the product. Reads nothing: see :mod:`skillyard.config.settings`."""

    model_config = ConfigDict(title="settings")

    strict_params: bool = Field(
        default=True,
        description="Whether an unknown parameter of a method is refused. Unset it for clients that send more.",
    )
    sweep_every_s: float = Field(
        default=300.0,
        gt=0,
        description="Time between two sweeps for expired blobs, old records and stray sandboxes.",
    )
    limits: LimitSettings = LimitSettings()
    admission: AdmissionSettings = AdmissionSettings()
    commands: CommandSettings = CommandSettings()
    sessions: SessionSettings = SessionSettings()
    services: ServiceSettings = ServiceSettings()
    policy: PolicySettings = PolicySettings()
    sandbox: SandboxSettings = SandboxSettings()
    network: NetworkSettings = NetworkSettings()
    trust: TrustSettings = TrustSettings()
    skills: SkillsSettings = SkillsSettings()
    secrets: SecretSettings = SecretSettings()
    output: OutputSettings = OutputSettings()
    blobs: BlobSettings = BlobSettings()
    records: RecordSettings = RecordSettings()
    schemas: SchemaSettings = SchemaSettings()
    native: NativeSettings = NativeSettings()
    gvisor: GvisorSettings = GvisorSettings()
    oci: OciSettings = OciSettings()
    microvm: MicrovmSettings = MicrovmSettings()
    e2b: E2bSettings = E2bSettings()
    opensandbox: OpenSandboxSettings = OpenSandboxSettings()
    srt: SrtSettings = SrtSettings()
    server: ServerSettings = ServerSettings()
    mcp: McpSettings = McpSettings()
    e2b_server: E2bServerSettings = E2bServerSettings()
    jail: JailSettings = JailSettings()
    oidc: OidcSettings = OidcSettings()
    packages: PackagesSettings = PackagesSettings()
    profiles: Profiles = Field(default_factory=dict)
    environments: Environments = Field(default_factory=lambda: with_bundled({}))

    def of_backend(self, name: str) -> str:
        """Returns the settings of a backend as a text, without secrets; empty where it has none."""
        section = getattr(self, "native" if name == "landlock" else name, None)
        return section.model_dump_json() if isinstance(section, Section) else ""

    def on_demand(self) -> dict[str, Section]:
        """Returns the sections of a runtime that makes no sandbox ahead."""
        return {"native": self.native.changed(ready=0)}
