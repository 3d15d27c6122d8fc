"""``[commands]``: the limits of commands and tasks, beside those that every run has."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from pydantic import ConfigDict, Field, model_validator

from skillyard.config.network import Rules
from skillyard.config.section import MIB, Section
from skillyard.domain.errors import InvalidInput
from skillyard.domain.sandbox.frames import FrameLimits
from skillyard.domain.work.limits import LimitFamily


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
