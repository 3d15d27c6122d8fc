"""The sections of backends, such as ``[native]`` and ``[oci]``."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, SecretStr, ValidationInfo

from skillyard.config.section import Section, place
from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.sandbox.image import is_name


class NativeSettings(Section):
    """The native backend, and the landlock backend beside it."""

    model_config = ConfigDict(title="native")

    ready: int = Field(
        default=4,
        ge=0,
        le=4096,
        description="Sandboxes that are made ahead for each of the shapes in use. Raise it for bursts of short runs; "
        "an idle one takes about 4 MiB.",
    )
    uid_base: int = Field(
        default=1_900_000_000,
        ge=65_536,
        description="First user id of sandboxes when the server is root. Change it where the host uses these ids.",
    )
    uid_count: int = Field(
        default=8192,
        ge=1,
        description="User ids of sandboxes, one for each that exists at a time.",
    )
    compiled: bool = Field(
        default=True,
        description="Whether the compiled part makes sandboxes, where it was built. It has no part in those whose "
        "packages are imported ahead, or that show directories of the host. Turn it off to compare it with the Python "
        "that does the same.",
    )
    retire_runs: int = Field(default=2000, ge=1, description="Runs after which a warm interpreter is replaced.")
    retire_s: float = Field(
        default=1800.0,
        gt=0,
        description="Time after which a warm interpreter is replaced.",
    )
    preload_mb: int = Field(
        default=256,
        ge=0,
        description="Memory that a warm interpreter may hold which imports packages ahead; 0 imports nothing ahead.",
    )
    preload_s: float = Field(
        default=30.0,
        gt=0,
        description="Time that one package may take to be imported ahead.",
    )
    zygotes_mb: int = Field(
        default=1024,
        ge=0,
        description="Memory of all warm interpreters; above it those that were used longest ago are closed.",
    )
    content_mb: int = Field(
        default=4096,
        ge=1,
        description="Content of skills, blobs and packages that a store holds elsewhere, kept in the run directory for "
        "sandboxes; when it is full, what no sandbox uses is removed, longest unused first.",
    )
    tenant_pids: int = Field(
        default=0,
        ge=0,
        description="Most processes and threads of all runs of one principal together; with more, the largest run ends "
        "as `processes`. 0: 256 for each processor, at least 512.",
    )

    @property
    def preloads(self) -> bool:
        """Whether warm interpreters import packages ahead."""
        return self.preload_mb > 0


class GvisorSettings(Section):
    """The gVisor backend. Its user ids are blocks of the range of ``native``."""

    model_config = ConfigDict(title="gvisor")

    runsc: str = Field(default="", description="Path of `runsc`; empty is the one on `PATH`.")
    platform: Literal["auto", "systrap", "ptrace"] = Field(
        default="auto",
        description="Platform that `runsc` runs on; `auto` takes the first of the others that works.",
    )
    ready: int = Field(
        default=1,
        ge=0,
        le=256,
        description="Sandboxes that are made ahead for each of the shapes in use, of about 35 MiB each.",
    )


def _image_name(name: str, info: ValidationInfo) -> str:
    if name and not is_name(name):
        raise InvalidInput(place(info), "must be the name or the digest of an image", shown(name))
    return name


def _domain(name: str, info: ValidationInfo) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.-]{1,253}", name):
        raise InvalidInput(
            place(info), "must be a domain, such as e2b.app; leave out https:// and any path", shown(name)
        )
    return name


def _host(name: str, info: ValidationInfo) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?", name):
        rule = "must be a host and its port, such as localhost:8080; http or https is opensandbox.protocol"
        raise InvalidInput(place(info), rule, shown(name))
    return name


Language = Literal["bash", "python", "javascript", "typescript"]
ImageName = Annotated[str, AfterValidator(_image_name)]


class OciSettings(Section):
    """The oci backend: containers of Docker or Podman."""

    model_config = ConfigDict(title="oci")

    socket: str = Field(
        default="/var/run/docker.sock",
        description="Path of the engine's unix socket: Docker's, or that of `podman system service`.",
    )
    image: ImageName = Field(
        default="",
        description="Image of sandboxes, by name or digest, as `skillyard image build` makes one. The engine must have "
        "it, with `python3` on its `PATH`: none is ever pulled.",
    )
    images: dict[Language, ImageName] = Field(
        default_factory=dict,
        description="Images by the language of a run's program, in place of `image`. They need `python3`, too. Images "
        "of single skills and requests are admitted by `policy.images`.",
    )

    runtime: str = Field(
        default="",
        description="Runtime of containers, as the engine names it: `runc`, `crun`, `runsc`, `kata`; empty is the "
        "engine's own choice.",
    )
    ready: int = Field(
        default=1,
        ge=0,
        le=256,
        description="Containers that are made ahead for each of the four shapes used last (image, limits, skills and "
        "packages), of about 25 MiB each; 0 makes none. Runs with blobs get theirs on demand.",
    )
    content_mb: int = Field(
        default=8192,
        ge=1,
        description="Skills, blobs and packages that an engine keeps in volumes where it does not see this host's "
        "files; when it is full, what no container has is removed, longest unused first.",
    )
    uid: int = Field(
        default=65_532,
        ge=1,
        le=4_294_967_294,
        description="User and group id of programs inside. Change it where the host has an account of that id.",
    )

    def image_for(self, language: str) -> str:
        """Returns the name of the image for programs in ``language``."""
        return next((name for key, name in self.images.items() if key == language), self.image)


class MicrovmSettings(Section):
    """The microvm backend: machines of QEMU."""

    model_config = ConfigDict(title="microvm")

    image: str = Field(
        default="",
        description="Directory of the image that `skillyard image build --microvm` made; empty is the one in the data "
        "directory.",
    )
    qemu: str = Field(default="qemu-system-x86_64", description="QEMU's program, by name or path.")
    accel: Literal["auto", "kvm", "tcg"] = Field(
        default="auto",
        description="Accelerator: `auto` takes KVM where a probe guest answers with it in ten seconds, else `tcg`, "
        "QEMU's own emulation; `kvm` makes no machine where none answers.",
    )
    ready: int = Field(
        default=1,
        ge=0,
        le=256,
        description="Machines that are restored ahead for each of the four shapes used last (limits, skills and "
        "packages), of about 200 MiB each; 0 makes none. Runs with blobs get theirs on demand.",
    )
    uid_base: int = Field(
        default=1_890_000_000,
        ge=65_536,
        description="First user id of QEMU when the server is root. Change it where the host uses these ids.",
    )
    uid_count: int = Field(
        default=8192, ge=1, description="User ids of QEMU, one for each machine that exists at a time."
    )


class E2bSettings(Section):
    """The e2b backend: machines of E2B, or of a server of yours that speaks its protocol."""

    model_config = ConfigDict(title="e2b")

    template: str = Field(
        default="",
        description="Template of machines, as `skillyard image e2b-template` writes one: its name or id at the "
        "provider. Without one no machine is made.",
    )
    templates: tuple[str, ...] = Field(default=(), description="Further templates that a run may have, as its image.")
    environments: dict[str, str] = Field(
        default_factory=dict,
        description="Templates by environment: runs in that environment get a machine of that template, which brings "
        "the packages along.",
    )
    api_key_secret: str = Field(
        default="E2B_API_KEY",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$",
        description="Name of the secret that holds the provider's API key. It must be stored for the project "
        "`skillyard` and the skill `skillyard-e2b`, so that no run gets it; variables of the server are not asked.",
    )
    domain: Annotated[str, AfterValidator(_domain)] = Field(
        default="e2b.app",
        description="Domain of the provider: its API is `https://api.DOMAIN`.",
    )
    api_url: str = Field(default="", description="Address of a self-hosted API, in place of that of the domain.")
    sandbox_url: str = Field(
        default="", description="Address by which a self-hosted provider's machines are reached, all of them."
    )
    http_version: Literal["1.1", "2"] = Field(
        default="2", description="Version of HTTP; `1.1` where something on the way mishandles version 2."
    )
    request_timeout_s: float = Field(default=60.0, gt=0, le=600, description="Time that one request may take.")
    max_ttl_s: int = Field(
        default=3600,
        ge=300,
        le=86_400,
        description="Longest time for which the provider keeps a machine that nobody renews. A task that a stopped "
        "server left ends after it.",
    )


class OpenSandboxSettings(Section):
    """The opensandbox backend: sandboxes of an OpenSandbox server."""

    model_config = ConfigDict(title="opensandbox")

    domain: Annotated[str, AfterValidator(_host)] = Field(
        default="localhost:8080",
        description="Host and port of the lifecycle server.",
    )
    protocol: Literal["http", "https"] = Field(
        default="http", description="`https` where the way to the server is not your own host's."
    )
    api_key: SecretStr = Field(
        default=SecretStr(""),
        description="The server's API key. Give it as a variable, not in a file; the SDK's own variable is not asked.",
    )
    use_server_proxy: bool = Field(
        default=False,
        description="Whether sandboxes are reached through the server. Set it where their ports are not to be reached.",
    )
    request_timeout_seconds: float = Field(
        default=600.0, gt=0, le=3600, description="Time that one request to the server may take."
    )
    image: ImageName = Field(
        default="",
        description="Image of sandboxes, by name or digest, with `python3` on its `PATH`. Without one none is made.",
    )
    images: dict[Language, ImageName] = Field(
        default_factory=dict,
        description="Images by the language of a run's program, in place of `image`. They need `python3`, too. Images "
        "of single skills and requests are admitted by `policy.images`.",
    )
    max_ttl_s: int = Field(
        default=3600,
        ge=300,
        le=86_400,
        description="Longest time for which the server keeps a sandbox that nobody renews; at most the server's own "
        "`max_sandbox_timeout_seconds`.",
    )
    content_mb: int = Field(
        default=8192,
        ge=1,
        description="Skills and packages that the server keeps in snapshots; when it is full, those that no sandbox is "
        "made of are removed, longest unused first.",
    )

    def image_for(self, language: str) -> str:
        """Returns the name of the image for programs in ``language``."""
        return next((name for key, name in self.images.items() if key == language), self.image)

    def key(self) -> str:
        return self.api_key.get_secret_value()
