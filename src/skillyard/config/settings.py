"""The operator's settings. From the strongest: arguments, ``SKILLYARD_*`` variables, the TOML file, the
``SKILLFLAW_SKILL_SANDBOX_*`` names of an existing ``.env``, defaults.

Nested names are joined by two underscores: ``SKILLYARD_LIMITS__MAX__TIMEOUT_MS=600000`` is ``[limits.max]
timeout_ms``. The file is the one that ``SKILLYARD_CONFIG`` names, else ``config.toml`` in the data directory.
A name that does not exist is an error, in the file and behind a known section in the environment.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from skillyard.client.discovery import default_data_dir
from skillyard.config.errors import PREFIX, check_names, explained, unread
from skillyard.config.network import NetworkSettings
from skillyard.config.packages import PackagesSettings
from skillyard.config.secrets import SecretSettings
from skillyard.config.skills import SkillsSettings
from skillyard.config.trust import TrustSettings
from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.sandbox.guarantees import GUARANTEES, KERNEL_CAN, PROTECTIONS
from skillyard.domain.skill.manifest_needs import is_requirement
from skillyard.domain.work.limits import MINIMUM, LimitFamily, Limits
from skillyard.engine.config import BUNDLED, AdmissionConfig, EngineConfig, EnvironmentDefinition
from skillyard.sandbox.registry import choices

MIB = 1024 * 1024

_ENVIRONMENT_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
SKILLFLAW = "SKILLFLAW_SKILL_SANDBOX_"
_SKILLFLAW_LIMITS = {"CPUS": "cpus", "MEMORY_MB": "memory_mb", "PIDS_LIMIT": "pids"}
_SKILLFLAW_GIVEN = {"NETWORK": "none", "READ_ONLY_ROOT": "true", "WORKSPACE_ACCESS": "rw", "TMPFS_ENABLED": "true"}
"""What our sandboxes are in any case; another value cannot be had and is reported."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _known_protections(names: frozenset[str]) -> frozenset[str]:
    known = dict.fromkeys((*GUARANTEES, *PROTECTIONS))
    if unknown := sorted(names - known.keys()):
        raise ValueError(f"unknown protections {', '.join(unknown)}; known are {', '.join(known)}")
    return names


Protections = Annotated[frozenset[str], AfterValidator(_known_protections)]


class LimitValues(_Section):
    """Largest values that a run may ask for."""

    timeout_ms: int = Field(default=3_600_000, ge=MINIMUM.timeout_ms)
    memory_mb: int = Field(default=8192, ge=MINIMUM.memory_mb)
    cpus: float = Field(default=16.0, ge=MINIMUM.cpus)
    pids: int = Field(default=4096, ge=MINIMUM.pids)
    disk_mb: int = Field(default=16384, ge=MINIMUM.disk_mb)


class LimitSettings(_Section):
    """What a run gets when it asks for nothing; ``max`` is the most that it may ask for."""

    timeout_ms: int = Field(default=300_000, ge=MINIMUM.timeout_ms)
    memory_mb: int = Field(default=512, ge=MINIMUM.memory_mb)
    cpus: float = Field(default=1.0, ge=MINIMUM.cpus)
    pids: int = Field(default=256, ge=MINIMUM.pids)
    disk_mb: int = Field(default=512, ge=MINIMUM.disk_mb)
    max: LimitValues = LimitValues()

    def family(self) -> LimitFamily:
        """Raises InvalidInput for a default above its maximum."""
        asked = self.model_dump(exclude={"max"})
        family = LimitFamily(Limits(**asked), Limits(**self.max.model_dump()))
        family.resolve(asked)
        return family


class AdmissionSettings(_Section):
    """``overcommit`` times the host's memory is what running sandboxes may be promised together. ``reserve`` is the
    part of the places, of that memory and of the queue that one principal alone leaves free for others; several
    that want all get equal shares, and leave less. ``requests_mb`` is what the requests of runs that wait or work
    may take of the server's memory."""

    running: int = Field(default=64, ge=1)
    queued: int = Field(default=256, ge=0)
    queued_each: int = Field(default=128, ge=0)
    overcommit: float = Field(default=4.0, gt=0)
    reserve: float = Field(default=0.25, ge=0, lt=1)
    requests_mb: int = Field(default=256, ge=1)

    def config(self) -> AdmissionConfig:
        host_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB
        memory_mb = int(host_mb * self.overcommit)
        return AdmissionConfig(
            self.running, self.queued, self.queued_each, memory_mb, self.reserve, self.requests_mb * MIB
        )


def _known_isolation(name: str) -> str:
    if name not in (known := choices()):
        text = f"Input should be {', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
        raise PydanticCustomError("isolation", "{text}", {"text": text})
    return name


Isolation = Annotated[str, AfterValidator(_known_isolation), WithJsonSchema({"enum": list(choices())})]


class PolicySettings(_Section):
    """``isolation`` is the boundary that runs get, ``isolations`` are further ones that a run may name; ``auto``
    is the strongest that stands on this host. ``allow_degraded`` names guarantees and walls that may be missing (for
    development; shown in /readyz and in each record). ``require = "kernel"`` refuses limits that are only watched, and
    guarantees that only a provider attests."""

    isolation: Isolation = "native"
    isolations: frozenset[Isolation] = frozenset()
    allow_degraded: Protections = frozenset()
    require: Literal["supervised", "kernel"] = "supervised"
    run_code_secrets: Literal["none", "mounted"] = "none"
    separate_principals: bool = False


class OutputSettings(_Section):
    oversize: Literal["spill", "fail"] = "spill"
    log_bytes: int = Field(default=64 * MIB, ge=1024)


class BlobSettings(_Section):
    """Bytes of one blob by JSON and streamed; quota of one owner; blobs that a run may write; files that it
    may leave in /workspace/out, bytes of each and of all together; seconds to live, 0 for ever."""

    json_bytes: int = Field(default=32 * MIB, ge=1)
    max_bytes: int = Field(default=4096 * MIB, ge=1)
    owner_bytes: int = Field(default=64 * 1024 * MIB, ge=1)
    owner_count: int = Field(default=1_000_000, ge=1)
    per_run: int = Field(default=1000, ge=0)
    files_per_run: int = Field(default=100, ge=0)
    file_bytes: int = Field(default=64 * MIB, ge=1)
    files_bytes: int = Field(default=256 * MIB, ge=1)
    ttl_s: float = Field(default=7 * 86400.0, ge=0)


class RecordSettings(_Section):
    """``durable`` syncs each record to the disk: it then survives the loss of power too. ``ttl_s`` 0: for ever.
    ``owner_count`` bounds the records of one principal: at each sweep its oldest ended runs beyond that go; 0
    for no bound."""

    ttl_s: float = Field(default=30 * 86400.0, ge=0)
    owner_count: int = Field(default=100_000, ge=0)
    durable: bool = False


class SchemaSettings(_Section):
    """The bounds of checks against skills' schemas. One check has ``check_s`` of processor time (and five times that by
    the clock) and ``memory_mb``; there are at most ``processes`` processes. A check that takes more fails its run with
    ``ValidationError``."""

    check_s: float = Field(default=1.0, gt=0, le=60)
    memory_mb: int = Field(default=512, ge=128)
    processes: int = Field(default=4, ge=2, le=64)


class NativeSettings(_Section):
    """The native backend: sandboxes made ahead, the range of user ids, when a warm interpreter is replaced, and how
    many processes and threads all runs of one principal may have together (0: 256 for each processor, at least
    512); with more, the largest ends as ``processes``. A warm interpreter that imports packages ahead may hold
    ``preload_mb`` MiB and take ``preload_s`` seconds for each of them; of all together, those that were used
    longest ago are closed above ``zygotes_mb`` MiB. With ``preload_mb`` 0 nothing is imported ahead."""

    ready: int = Field(default=4, ge=0, le=4096)
    uid_base: int = Field(default=1_900_000_000, ge=65_536)
    uid_count: int = Field(default=8192, ge=1)
    retire_runs: int = Field(default=2000, ge=1)
    retire_s: float = Field(default=1800.0, gt=0)
    preload_mb: int = Field(default=256, ge=0)
    preload_s: float = Field(default=30.0, gt=0)
    zygotes_mb: int = Field(default=1024, ge=0)
    tenant_pids: int = Field(default=0, ge=0)


class GvisorSettings(_Section):
    """The gVisor backend: the path of ``runsc`` (empty: the one on PATH), the platform that it runs on, sandboxes made
    ahead. Its user ids are blocks of the range of ``native``."""

    runsc: str = ""
    platform: Literal["auto", "systrap", "ptrace"] = "auto"
    ready: int = Field(default=1, ge=0, le=256)


class ServerSettings(_Section):
    """Of ``skillyard serve``. ``allowed_hosts`` are further names that requests may address it by (behind a
    proxy, say); ``open_metrics`` shows /metrics without a token; ``grace_s`` is what runs get to end in."""

    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65535)
    allowed_hosts: tuple[str, ...] = ()
    open_metrics: bool = False
    body_bytes: int = Field(default=32 * MIB, ge=1024)
    grace_s: float = Field(default=30.0, ge=0)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"


class EnvironmentSettings(_Section):
    """Requirements to install, and modules to import ahead beside those of the table. False or empty: none at all."""

    packages: tuple[str, ...] = ()
    preload: tuple[str, ...] | Literal[False] | None = None

    @field_validator("packages")
    @classmethod
    def _check_packages(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if not is_requirement(text):
                rule = "must be requirements such as 'numpy>=2,<3'; no URLs, paths or options"
                raise InvalidInput("environments.packages", rule, shown(text))
        return value

    @field_validator("preload")
    @classmethod
    def _check_preload(cls, value: tuple[str, ...] | Literal[False] | None) -> tuple[str, ...] | Literal[False] | None:
        """Refuses ``x.__main__`` and the like, whose import would run them."""
        for name in value or ():
            if not all(part.isidentifier() and not part.startswith("__") for part in name.split(".")):
                raise InvalidInput("environments.preload", "must be false or names of modules, such as 'a.b'", name)
        return value


class Settings(BaseSettings):
    """All of it. Made by :func:`load_settings`, which explains what is wrong.

    ``notes`` are remarks for the log: what was overridden, what cannot be honoured.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    data_dir: Path = Field(default_factory=default_data_dir)
    skills_dirs: Annotated[tuple[Path, ...], NoDecode] = ()
    strict_params: bool = True
    sweep_every_s: float = Field(default=300.0, gt=0)
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
    environments: dict[str, EnvironmentSettings] = Field(default_factory=dict)
    notes: tuple[str, ...] = Field(default=(), exclude=True)

    @field_validator("skills_dirs", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """As in ``PATH`` when it comes as text."""
        return tuple(filter(None, value.split(os.pathsep))) if isinstance(value, str) else value

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("skills_dirs")
    @classmethod
    def _all_absolute(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        return tuple(path.expanduser().absolute() for path in value)

    @field_validator("environments")
    @classmethod
    def _check_environments(cls, value: dict[str, EnvironmentSettings]) -> dict[str, EnvironmentSettings]:
        for name in value:
            if _ENVIRONMENT_NAME.fullmatch(name) is None:
                rule = "must be lowercase letters, digits, dots, hyphens and underscores: runs name it so"
                raise InvalidInput("environments", rule, shown(name))
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - what is not wanted is not returned
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        assert isinstance(init_settings, InitSettingsSource)
        toml = TomlConfigSettingsSource(settings_cls, _config_file(init_settings.init_kwargs))
        foreign = InitSettingsSource(settings_cls, {"limits": skillflaw_limits(os.environ)})
        return init_settings, env_settings, toml, foreign

    def engine_config(self) -> EngineConfig:
        """What the engine needs to know. Raises InvalidInput for settings that contradict each other."""
        policy, blobs = self.policy, self.blobs
        return EngineConfig(
            limits=self.limits.family(),
            admission=self.admission.config(),
            environments=self.environment_definitions(),
            strict_params=self.strict_params,
            oversize_output=self.output.oversize,
            run_code_secrets=policy.run_code_secrets,
            isolation=policy.isolation,
            isolations=frozenset(policy.isolations),
            kernel_only=KERNEL_CAN if policy.require == "kernel" else frozenset(),
            allow_degraded=policy.allow_degraded,
            separate_principals=policy.separate_principals,
            preload=self.native.preload_mb > 0,
            network=self.network.config(),
            trust=self.trust.config(),
            packages=self.packages.config(),
            log_bytes=self.output.log_bytes,
            json_blob_bytes=blobs.json_bytes,
            run_blob_bytes=blobs.max_bytes,
            run_blobs=blobs.per_run,
            run_files=blobs.files_per_run,
            run_file_bytes=blobs.file_bytes,
            run_files_bytes=blobs.files_bytes,
            blob_ttl_s=blobs.ttl_s or None,
            record_ttl_s=self.records.ttl_s or None,
            owner_records=self.records.owner_count or None,
            secret_audit_ttl_s=self.secrets.audit_ttl_s or None,
            sweep_every_s=self.sweep_every_s,
        )

    def environment_definitions(self) -> dict[str, EnvironmentDefinition]:
        """The bundled ones, and the operator's, which may redefine them."""
        own = {
            name: EnvironmentDefinition(given.packages, () if given.preload is False else given.preload)
            for name, given in self.environments.items()
        }
        return {**BUNDLED, **own}


def load_settings(**overrides: Any) -> Settings:
    """The settings; ``overrides`` that are None count as not given.

    Raises InvalidInput naming the setting and the rule.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    check_names(Settings, os.environ)
    try:
        settings = Settings(**given)
        settings.limits.family()
        settings.network.config()
        settings.packages.config()
        settings.secrets.check()
    except ValidationError as error:
        raise explained(Settings, error) from None
    except SettingsError as error:
        raise unread(error, os.environ) from None
    return settings.model_copy(update={"notes": tuple(_notes(os.environ, settings))})


def skillflaw_limits(environ: Mapping[str, str]) -> dict[str, Any]:
    """Limits under the names of an existing SkillFlaw configuration. Raises InvalidInput."""
    found: dict[str, Any] = {
        ours: environ[SKILLFLAW + theirs]
        for theirs, ours in _SKILLFLAW_LIMITS.items()
        if environ.get(SKILLFLAW + theirs)
    }
    if seconds := environ.get(SKILLFLAW + "TIMEOUT_SECONDS"):
        found["timeout_ms"] = round(_number(SKILLFLAW + "TIMEOUT_SECONDS", seconds) * 1000)
    return found


def _notes(environ: Mapping[str, str], settings: Settings) -> Iterator[str]:
    """What a SkillFlaw configuration says and ours does not do."""
    for name, value in skillflaw_limits(environ).items():
        ours = getattr(settings.limits, name)
        if float(value) != float(ours):
            yield f"limits.{name} = {ours} of our own settings overrides the {SKILLFLAW}* variable ({value})"
    known = {*_SKILLFLAW_LIMITS, "TIMEOUT_SECONDS"}
    for variable in sorted(name for name in environ if name.startswith("SKILLFLAW_")):
        short = variable.removeprefix(SKILLFLAW)
        if short in _SKILLFLAW_GIVEN and environ[variable].lower() == _SKILLFLAW_GIVEN[short]:
            continue
        if short not in known:
            yield f"the variable {variable} has no effect here"


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(name, "must be a number", shown(text)) from None


def _config_file(given: Mapping[str, Any]) -> Path | None:
    """Raises InvalidInput for a named file that is not there, and for one that is not TOML."""
    named = os.environ.get("SKILLYARD_CONFIG")
    file = Path(named).expanduser() if named else Path(given.get("data_dir") or default_data_dir()) / "config.toml"
    try:
        tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named:
            raise InvalidInput("SKILLYARD_CONFIG", f"there is no file {file}") from None
        return None
    except OSError as error:
        raise InvalidInput(str(file), f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InvalidInput(str(file), f"cannot be read as TOML: {error}") from None
    return file
