"""Settings of files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from broker.config.allowed import NotAllowed, allowed
from broker.config.model import Settings
from broker.config.units import Size


class FileSettings(Settings):
    """One file, and those that were rotated away."""

    filepath: Path = Field(
        description="The file; a path in `files` in the data directory, where a relative one starts, or in one of "
        "`allowed.directories`. Its folder must be there."
    )
    max_file_size: Size = Field(
        default=50 * 1024 * 1024,
        ge=1024,
        le=1024**4,
        description="Maximum size of the file; it is rotated before it grows larger.",
    )
    max_file_number: int = Field(
        default=10, ge=0, le=100_000, description="Number of rotated files that are kept, the newest. 0 keeps none."
    )
    rotation: Literal["none", "hour", "day"] = Field(
        default="none", description="Additional rotation at each full hour or at midnight, UTC."
    )

    @field_validator("filepath")
    @classmethod
    def _allowed(cls, value: Path) -> Path:
        try:
            allowed().file(value)
        except NotAllowed as error:
            raise ValueError(str(error)) from None
        return value


class FileActionSettings(Settings):
    """How a row becomes a line."""

    template: str = Field(
        default="${.}", description="The line; a template over the row. Default: the whole row as JSON."
    )
    write_mode: Literal["sync", "async"] = Field(
        default="async",
        description="sync confirms a batch once it is on the disk, async once the operating system has it.",
    )
