"""``[srt]``: how the srt backend makes sandboxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from skillyard.config.section import Section
from skillyard.domain.errors import InvalidInput


class SrtSettings(Section):
    """The srt backend: Anthropic's sandbox-runtime."""

    model_config = ConfigDict(title="srt")

    command: str = Field(default="", description="Path of `srt`; empty is the one on `PATH`.")
    settings_mode: Literal["generated", "file"] = Field(
        default="generated",
        description="Source of srt's own settings: `generated` writes them from policy, `file` takes `settings_path` "
        "as it is, if it opens nothing that policy closes.",
    )
    settings_path: Path | None = Field(default=None, description="File of srt's settings, for the mode `file`.")
    local_root: Path | None = Field(
        default=None,
        description="Directory of run directories, which nobody else may enter; by default one in the data directory. "
        "A path of at most 70 characters, as sockets lie there.",
    )
    cache_root: Path | None = Field(
        default=None,
        description="Directory for content of skills and packages that a store holds elsewhere; by default one in the "
        "data directory.",
    )
    deny_read: tuple[str, ...] = Field(
        default=(),
        description="Further paths that programs cannot read, beyond the host's files, which they are never shown.",
    )
    deny_write: tuple[str, ...] = Field(
        default=(), description="Paths below the writable places that programs cannot write to."
    )
    ignore_violations: dict[str, list[str]] = Field(
        default_factory=dict,
        description="Violations that srt does not report, by command; what is refused stays refused.",
    )

    @field_validator("settings_path", "local_root", "cache_root", mode="before")
    @classmethod
    def _absolute(cls, value: Any) -> Any:
        return Path(value).expanduser().absolute() if isinstance(value, str | Path) and str(value) else None

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        """Raises InvalidInput for a file that is missing, or named and not used."""
        if self.settings_mode == "file" and self.settings_path is None:
            raise InvalidInput(
                "srt.settings_path", "is needed for settings_mode 'file'; name the file of srt's settings"
            )
        if self.settings_mode == "file" and (self.deny_read or self.deny_write or self.ignore_violations):
            rule = "is 'file', where the file says what is denied; write deny_read and the others into it"
            raise InvalidInput("srt.settings_mode", rule)
        return self
