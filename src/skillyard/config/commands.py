"""``[commands]`` and ``[jail]``: the limits of commands, tasks and jails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, PlainSerializer, ValidationInfo, field_validator, model_validator

from skillyard.config.network import Rules
from skillyard.config.section import MIB, Section, place, rules_of, texts_of
from skillyard.domain.errors import InvalidInput
from skillyard.domain.network.rule import Rule
from skillyard.domain.sandbox.frames import FrameLimits
from skillyard.domain.work.limits import LimitFamily, Limits


class CommandSettings(Section):
    """The limits of shell commands in skills. A request above one is refused with its name, never clamped."""

    model_config = ConfigDict(title="commands")

    timeout_s: float = Field(default=60.0, gt=0, description="Time after which a command is ended that names none.")
    max_timeout_s: float = Field(
        default=120.0, gt=0, description="Longest time that a command may ask for whose caller waits for it."
    )
    task_timeout_s: float = Field(default=1800.0, gt=0, description="Time after which a task is ended that names none.")
    max_task_timeout_s: float = Field(default=86400.0, gt=0, description="Longest time that a task may ask for.")
    job_time_s: float = Field(
        default=1800.0, gt=0, description="Time for all steps of a job together that names none (max_wall_time_sec)."
    )
    max_job_time_s: float = Field(default=86400.0, gt=0, description="Longest time that a job may ask for.")
    jobs_each: int = Field(default=100, ge=1, description="Most jobs of one principal that have not ended.")
    stdout_bytes: int = Field(
        default=204_800, ge=1, description="Bytes of the end of stdout that an answer holds; the log has all of it."
    )
    stderr_bytes: int = Field(default=204_800, ge=1, description="Bytes of the end of stderr that an answer holds.")
    input_bytes: int = Field(default=20 * MIB, ge=1, description="Largest file that is written before a command.")
    inputs_bytes: int = Field(default=50 * MIB, ge=1, description="Most bytes of all such files together.")
    output_bytes: int = Field(default=20 * MIB, ge=1, description="Largest file that is kept of a command.")
    outputs_bytes: int = Field(default=50 * MIB, ge=1, description="Most bytes of all files that are kept.")

    callback_hosts: Rules = Field(
        default=(),
        description="Hosts that the end of a task may be told to (`callback_url`), as rules of `network.rules`. Empty "
        "refuses all callbacks. Private addresses stay closed unless a rule names the address.",
        json_schema_extra={"kind": "`none` or `open` or list of text"},
    )
    callback_secret: str = Field(
        default="CALLBACK_KEY",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$",
        description="Name of the stored secret that callbacks are signed with: `skillyard secret set CALLBACK_KEY "
        "--skills Callbacks`, with `--project` for a key of its own.",
    )
    callback_tries: int = Field(
        default=8, ge=1, le=100, description="Tries of one callback, with longer and longer pauses up to six hours."
    )

    @model_validator(mode="after")
    def _check_defaults(self) -> Self:
        """Raises InvalidInput for a default above its maximum."""
        for name in ("timeout_s", "task_timeout_s", "job_time_s"):
            most = f"max_{name}"
            if getattr(self, name) > getattr(self, most):
                raise InvalidInput(f"commands.{name}", f"must be at most commands.{most}")
        return self

    def times(self, *, task: bool) -> tuple[float, float]:
        """Returns the time of a command or a task that names none, and the most, in seconds."""
        return (self.task_timeout_s, self.max_task_timeout_s) if task else (self.timeout_s, self.max_timeout_s)

    def family(self, runs: LimitFamily) -> LimitFamily:
        """Returns the limits of commands: those of ``runs`` with the times of this section."""
        longest = max(self.max_timeout_s, self.max_task_timeout_s)
        return LimitFamily(
            replace(runs.defaults, timeout_ms=max(1, round(self.timeout_s * 1000))),
            replace(runs.maxima, timeout_ms=max(1, round(longest * 1000))),
        )

    def frames(self, runs: FrameLimits) -> FrameLimits:
        """Returns the bounds of what one command sends out."""
        return replace(runs, file_bytes=self.output_bytes, files_bytes=self.outputs_bytes)


_RULES = PlainSerializer(texts_of)


class JailProfile(Section):
    """The grants of a program that is jailed with this profile. Options of the command line add to them."""

    model_config = ConfigDict(title="jail.profiles")

    read: tuple[Path, ...] = Field(default=(), description="Directories that it may read.")
    write: tuple[Path, ...] = Field(default=(), description="Directories that it may read and write.")
    allow: Annotated[tuple[Rule, ...], _RULES] = Field(
        default=(),
        description="Hosts that it may reach, as in `network.rules`.",
        json_schema_extra={"kind": "list of text"},
    )
    env: tuple[str, ...] = Field(default=(), description="Variables that it gets from the command's environment.")
    secrets: tuple[str, ...] = Field(default=(), description="Secrets that it gets.")

    @field_validator("allow", mode="before")
    @classmethod
    def _rules(cls, value: Any, info: ValidationInfo) -> tuple[Rule, ...]:
        return rules_of(place(info), value)


class JailSettings(Section):
    """How programs run that `skillyard jail` starts."""

    model_config = ConfigDict(title="jail")

    dir: Path | None = Field(
        default=None,
        description="Directory of the state of jails: their records and their packages. Without it, `jails` in the data"
        " directory.",
        json_schema_extra={"default": "`jails` in the data directory"},
    )
    timeout_s: float = Field(
        default=30 * 86_400.0,
        gt=0,
        le=366 * 86_400,
        description="Time after which a program is ended. The client of a server of tools usually ends it before.",
    )
    memory_mb: int = Field(default=1024, ge=16, description="Memory of a program and all that it starts, in MiB.")
    cpus: float = Field(default=1.0, ge=0.01, description="Processors of a program.")
    pids: int = Field(default=256, ge=4, description="Processes and threads of a program.")
    disk_mb: int = Field(
        default=512, ge=1, description="Files that a program may write beside directories of the host."
    )
    places: int = Field(
        default=16,
        ge=0,
        le=1024,
        description="Jails that a server runs at a time for commands of its own user; others run alone. With 0 it "
        "takes none, and such a command asks none.",
    )
    profiles: dict[str, JailProfile] = Field(default_factory=dict, description="Profiles by name.")

    @property
    def limits(self) -> Limits:
        """Returns the limits of one jail."""
        return Limits(round(self.timeout_s * 1000), self.memory_mb, self.cpus, self.pids, self.disk_mb)
