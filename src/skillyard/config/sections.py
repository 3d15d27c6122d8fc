"""All sections together, as the engine takes them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from skillyard.config.admission import AdmissionSettings
from skillyard.config.backends import GvisorSettings, NativeSettings
from skillyard.config.limits import LimitSettings
from skillyard.config.network import NetworkSettings
from skillyard.config.packages import EnvironmentSettings, PackagesSettings, with_bundled
from skillyard.config.policy import PolicySettings, TrustSettings
from skillyard.config.secrets import SecretSettings
from skillyard.config.section import Section
from skillyard.config.server import ServerSettings
from skillyard.config.skills import SchemaSettings, SkillsSettings
from skillyard.config.storage import BlobSettings, OutputSettings, RecordSettings

Environments = Annotated[dict[str, EnvironmentSettings], AfterValidator(with_bundled)]


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
    policy: PolicySettings = PolicySettings()
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
    server: ServerSettings = ServerSettings()
    packages: PackagesSettings = PackagesSettings()
    environments: Environments = Field(default_factory=lambda: with_bundled({}))
