"""``[mcp.servers.NAME]``: the MCP servers whose tools skillyard offers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, PlainSerializer, PlainValidator, model_validator

from skillyard.config.section import MIB, Section, rules_of, texts_of
from skillyard.domain.errors import InvalidInput, shape, shown
from skillyard.domain.network.rule import Rule
from skillyard.domain.sandbox.content import HostDirectory
from skillyard.domain.tool import check_server_name
from skillyard.domain.work.limits import Limits

_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,64}")
_SECRET = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_IN_HEADER = re.compile(r"\{([A-Z][A-Z0-9_]{0,63})\}")


def _rules(value: Any) -> tuple[Rule, ...]:
    return rules_of("mcp.servers.network", value)


def _patterns(value: tuple[str, ...]) -> tuple[str, ...]:
    for each in value:
        if not _PATTERN.fullmatch(each):
            raise InvalidInput("mcp.servers.tools", "must be patterns of tools, such as 'read_*'", shown(each))
    return value


class McpServer(Section):
    """An MCP server: a program in a sandbox, or an address that the gate reaches."""

    model_config = ConfigDict(title="mcp.servers.NAME")

    command: tuple[str, ...] = Field(
        default=(), description="Program and arguments of a server on standard input and output; it runs in a sandbox."
    )
    url: str = Field(default="", description="Address of a server behind Streamable HTTP, in place of `command`.")
    headers: dict[str, str] = Field(
        default_factory=dict,
        description="Header fields of requests to `url`. `{NAME}` stands for a secret, which the gate puts in.",
    )
    source: Path | None = Field(
        default=None,
        description="Directory of this host with the server's files, shown read-only as `/skills/NAME`. The program"
        " starts there.",
        json_schema_extra={"default": "none"},
    )
    environment: str = Field(
        default="base", description="Environment whose Python packages the program has (`[environments]`)."
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="Variables of the program. No secrets: see `secrets`."
    )
    secrets: tuple[str, ...] = Field(
        default=(),
        description="Secrets that the gate puts into requests. Each must be bound to hosts; the program holds a"
        " placeholder in a variable of its name.",
    )
    network: Annotated[tuple[Rule, ...], PlainValidator(_rules), PlainSerializer(texts_of)] = Field(
        default=(),
        description="Targets that the program may reach, within `network.rules`.",
        json_schema_extra={"kind": "`none` or `open` or list of text"},
    )
    tools: Annotated[tuple[str, ...], AfterValidator(_patterns)] = Field(
        default=("*",), description="Names or patterns of the tools that are offered; others do not exist here."
    )
    approve_first: bool = Field(
        default=False,
        description="Whether the definitions that the server gives first are approved without a word. Changes are held"
        " back all the same.",
    )
    shared: bool = Field(
        default=False,
        description="Whether all principals share one process. Otherwise each has one of its own, with its project's"
        " secrets.",
    )
    timeout_s: float = Field(default=60.0, gt=0, le=3600, description="Longest call of a tool.")
    start_s: float = Field(default=30.0, gt=0, le=600, description="Longest wait for the server to begin.")
    idle_s: float = Field(default=600.0, gt=0, description="Time without a call after which its process ends.")
    life_s: float = Field(default=86_400.0, gt=0, description="Longest life of one process.")
    calls: int = Field(default=16, ge=1, le=1024, description="Calls of one process at once; more are told to wait.")
    calls_each: int = Field(
        default=8, ge=1, le=1024, description="Calls of one principal at once at a process that is `shared`."
    )
    result_bytes: int = Field(
        default=MIB, ge=1024, le=32 * MIB, description="Largest answer of a tool; a larger one fails its call."
    )
    memory_mb: int = Field(default=512, ge=16, description="Memory of the program, MiB.")
    cpus: float = Field(default=1.0, gt=0, description="Cores of the program.")
    pids: int = Field(default=256, ge=1, description="Processes and threads of the program.")
    disk_mb: int = Field(default=512, ge=1, description="Files that the program may write, MiB.")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        """Raises InvalidInput for what does not fit together."""
        if bool(self.command) == bool(self.url):
            raise InvalidInput("mcp.servers", "each needs either a command or a url")
        if self.command and self.headers:
            raise InvalidInput("mcp.servers.headers", "are for a server with a url")
        if self.url:
            _check_url(self.url)
            for name in ("source", "env", "network", "secrets"):
                if getattr(self, name):
                    raise InvalidInput(f"mcp.servers.{name}", "is for a server with a command")
        for name in self.secrets:
            if not _SECRET.fullmatch(name):
                raise InvalidInput("mcp.servers.secrets", "must be names of secrets", shown(name))
        if self.source is not None and not self.source.is_absolute():
            raise InvalidInput("mcp.servers.source", "must be an absolute path", shown(str(self.source)))
        if self.source is not None and self.source.resolve() in (home := Path.home().resolve(), *home.parents):
            rule = "must be a directory of the program's own, not a home or a directory above one"
            raise InvalidInput("mcp.servers.source", rule, shown(str(self.source)))
        return self

    @property
    def source_directory(self) -> HostDirectory | None:
        """Returns the directory that its sandbox is shown, if any."""
        return None if self.source is None else HostDirectory(self.source)

    @property
    def limits(self) -> Limits:
        """Returns the limits of its sandbox."""
        return Limits(round(self.life_s * 1000), self.memory_mb, self.cpus, self.pids, self.disk_mb)

    @property
    def secret_names(self) -> tuple[str, ...]:
        """Returns the secrets that it needs, of header fields too."""
        in_headers = (name for value in self.headers.values() for name in _IN_HEADER.findall(value))
        return tuple(dict.fromkeys((*self.secrets, *in_headers)))

    def fields(self, placeholders: Mapping[str, str]) -> dict[str, str]:
        """Returns the header fields, with placeholders for the secrets."""
        return {
            name: _IN_HEADER.sub(lambda found: placeholders[found[1]], value) for name, value in self.headers.items()
        }


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.fragment:
        rule = "must be an http or https address without a user and without a fragment"
        raise InvalidInput("mcp.servers.url", rule, shape(url))


def named(given: Mapping[str, McpServer]) -> dict[str, McpServer]:
    """Returns the servers. Raises InvalidInput for a name that cannot be one."""
    for name in given:
        check_server_name("mcp.servers", name)
    return dict(given)


McpServers = Annotated[dict[str, McpServer], AfterValidator(named)]
