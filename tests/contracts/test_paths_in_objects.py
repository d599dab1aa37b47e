"""Paths that objects name: each is held to the directories that objects may use, by a check that is named here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel

from broker.core.kinds import kinds

_PATH: Final = re.compile(r"(file|path|dir|directory|folder|public_key|location)$")
_READ: Final = "broker.admin.named_files.check_files"
CHECKED: Final = {
    "cacertfile": _READ,
    "certfile": _READ,
    "keyfile": _READ,
    "crlfile": _READ,
    "public_key": _READ,
    "FileSourceSettings.path": "broker.admin.access_settings.KindsInOrder",
    "filepath": "bridges.file.connector, Allowed.file",
    "LakeTableSpec.path": "bridges.spark.broker_side.table_spec, Allowed.directory",
}
NO_FILE: Final = {
    "HttpActionSettings.path": "of a URL",
    "health_check_path": "of a URL",
    "WebSocketOptions.path": "of a URL",
    "WebSocketSettings.path": "of a URL",
}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _paths(model: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[tuple[str, str]]:
    if model in seen:
        return
    seen.add(model)
    for name, field in model.model_fields.items():
        if Path in (field.annotation, *get_args(field.annotation)) or _PATH.search(name):
            yield model.__name__, name
        for inner in _models(field.annotation):
            yield from _paths(inner, seen)


def test_every_path_in_an_object_has_a_check() -> None:
    seen: set[type[BaseModel]] = set()
    models = [
        model for kind in kinds() for model in kind.spec_models() if issubclass(model, BaseModel)
    ]
    paths = {path for model in models for path in _paths(model, seen)}
    known = CHECKED.keys() | NO_FILE.keys()
    assert {
        (model, name) for model, name in paths if not {name, f"{model}.{name}"} & known
    } == set()
    assert ("FileSourceSettings", "path") in paths
