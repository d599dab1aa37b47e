"""A lake table as people specify it, checked."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from broker.config.allowed import NotAllowed, allowed
from broker.config.model import Settings
from broker.config.spec_problems import spec_problems
from broker.config.units import Duration
from broker.core.errors import Invalid, Problem
from broker.core.objects import Spec
from broker.core.ordered import name_problem


class LakeTableSpec(Settings):
    """What is kept of a table."""

    name: str
    stream: str
    format: Literal["delta", "iceberg"] = "delta"
    path: str = Field("", description="Directory of the table; created with it.")
    rule: str = Field(
        "", description="A rule that Spark runs on the messages of the stream; its rows are the table's. Default: none."
    )
    commit_interval: Duration = Field(10.0, ge=0.1, le=3600, description="Minimum time between commits.")
    commit_rows: int = Field(
        100_000, ge=1, le=50_000_000, description="Waiting records that are committed before 'commit_interval' ends."
    )
    description: str = ""


def parse_spec(spec: Spec, directory: Path, streams: Sequence[str], shown_only: frozenset[str]) -> LakeTableSpec:
    """The spec with its path filled in. Members of ``shown_only`` are left out, as they come back from a GET.

    Raises:
        Invalid: with every problem found.
    """
    given: dict[str, Any] = {key: value for key, value in spec.items() if key not in shown_only}
    parsed = checked(given)
    path = directory / (parsed.path or parsed.name)
    try:
        allowed().directory(path, directory)
        outside = ""
    except NotAllowed as error:
        outside = str(error)
    parsed = parsed.model_copy(update={"path": str(path)})
    problems = [
        Problem(text, pointer)
        for text, pointer in (
            (name_problem(parsed.name), "/name"),
            (_stream_problem(parsed.stream, streams), "/stream"),
            ("://" in (spec.get("path") or "") and "expected a path of this machine, not a URL", "/path"),
            (outside, "/path"),
        )
        if text
    ]
    if not problems and (reason := unwritable(path)):
        problems.append(Problem(f"table path {path} cannot be written: {reason}; choose another path", "/path"))
    if problems:
        raise Invalid(f"lake table {parsed.name!r} cannot be saved", problems)
    return parsed


def checked(spec: Spec) -> LakeTableSpec:
    """The members of a table, each of its type.

    Raises:
        Invalid: with every problem found.
    """
    try:
        return LakeTableSpec.model_validate(spec)
    except ValidationError as error:
        problems = spec_problems(error, LakeTableSpec)
        raise Invalid(f"lake table {spec.get('name')!r} cannot be saved", problems) from None


def unwritable(path: Path) -> str | None:
    """Why a table cannot be written in this directory, or None when it can. Makes the directory."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor, probe = tempfile.mkstemp(dir=path, prefix=".probe-")
        os.close(descriptor)
        os.unlink(probe)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def _stream_problem(stream: str, streams: Sequence[str]) -> str | None:
    if stream in streams:
        return None
    return f"there is no stream {stream!r}; create it first, or use one of: {', '.join(streams) or 'none'}"
