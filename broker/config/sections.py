"""The sections of the configuration that hold objects.

Objects in ``base.hocon`` and ``sluice.conf`` are fixed by those files. What the API makes is in ``DIR/api.hocon``,
one file for all kinds, written as JSON (which is HOCON). Hand-written objects come first, in the order of their
files, then the API's in the order they were saved. Of two with one name the stronger layer's counts, as for settings.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from broker.config.layers import API_FILE, KeyPath
from broker.config.objects import LayerObjects
from broker.config.root import Config
from broker.config.stamp import stamp_of
from broker.core.errors import NotFound, Unavailable
from broker.core.objects import ObjectSection, Spec, Version, etag_of, saving


class Sections:
    """Makes a section for each kind of objects that a configuration was loaded with."""

    def __init__(self, config: Config) -> None:
        self.file = None if config.api_file is None else ApiFile(config.api_file, config.api_values)
        """What the API writes; None without a data directory."""
        self._sections = {
            name: FileSection(tuple(name.split(".")), layers, self.file) for name, layers in config.objects.items()
        }

    def reload(self, config: Config) -> None:
        """Take the objects of a configuration that was read again, and what the API's file holds now."""
        if self.file is not None:
            self.file.reread(config.api_values)
        for name, section in self._sections.items():
            section.read(config.objects[name])

    @contextmanager
    def unlocked(self) -> Iterator[None]:
        """Let services change objects that files fix, since those files have changed."""
        for section in self._sections.values():
            section.is_unlocked = True
        try:
            yield
        finally:
            for section in self._sections.values():
                section.is_unlocked = False

    def section(self, path: str) -> ObjectSection:
        """The section at a path such as ``rule_engine.rules``.

        Raises:
            NotFound: the configuration was not loaded with such a section.
        """
        if path not in self._sections:
            raise NotFound("section of objects", path)
        return self._sections[path]


class FileSection:
    """One kind of objects, merged from the layers. Implements ``broker.core.objects.ObjectSection``."""

    def __init__(self, path: KeyPath, layers: Sequence[LayerObjects], api_file: ApiFile | None) -> None:
        self._path, self._api_file = path, api_file
        self.is_unlocked = False
        """While files that fix objects are being taken over."""
        self._fixed: dict[str, tuple[str, Spec]] = {}
        self._made: dict[str, Spec] = {}
        self._versions: dict[str, Version] = {}
        self._changed_ns: dict[str, int] = {}
        self.read(layers)
        self._changed_ns.clear()

    def read(self, layers: Sequence[LayerObjects]) -> None:
        """Take the objects of the layers in place of those there were."""
        path, before = self._path, self._saved()
        self._fixed, self._made = {}, {}
        self._places: dict[str, str] = {}
        self._hidden: dict[str, Spec] = {}  # the API's, while sluice.conf has an object of that name
        for held in layers:
            self._places |= held.places(path)
            if held.layer.file is not None and held.layer.file.name == API_FILE:
                self._made = {spec["name"]: spec for spec in held.objects}
                for name in self._made:
                    self._fixed.pop(name, None)
                continue
            for spec in held.objects:
                self._fixed[spec["name"]] = (held.layer.name, spec)
                if spec["name"] in self._made:
                    self._hidden[spec["name"]] = self._made.pop(spec["name"])
        self._note_changes(before)

    def load(self) -> list[Spec]:
        """All objects in order; the caller may change what it gets."""
        objects = [spec for _, spec in self._fixed.values()] + list(self._made.values())
        return copy.deepcopy(objects)

    def save(self, objects: Sequence[Spec]) -> None:
        """Write the API's among the objects; returns when they are on disk. Fixed ones are not written."""
        made = {spec["name"]: copy.deepcopy(spec) for spec in objects if spec["name"] not in self._fixed}
        if self._api_file is None:
            raise Unavailable("objects cannot be saved without a data directory; start with --data-dir")
        saving(made != self._made or list(made) != list(self._made))
        self._api_file.put(self._path, [*made.values(), *self._hidden.values()])
        before, self._made = self._saved(), made
        self._note_changes(before)

    def fixed_by(self, name: str) -> str | None:
        """The file that fixes the object, or None."""
        fixed = self._fixed.get(name)
        return None if fixed is None or self.is_unlocked else fixed[0]

    def where(self, name: str) -> str:
        """The file and line of the object when the broker started, else the API's file."""
        return self._places.get(name) or (API_FILE if self._api_file is None else str(self._api_file.path))

    def saved(self, name: str) -> Spec:
        """An object of the section, as it is saved; not to be changed."""
        return self._made[name] if name in self._made else self._fixed[name][1]

    def version(self, name: str) -> Version:
        """The version of an object that is in the section; its digest is made when it is first asked for."""
        found = self._versions.get(name)
        if found is None:
            found = self._versions[name] = Version(etag_of(self.saved(name)), self._changed_ns.get(name))
        return found

    def _saved(self) -> dict[str, Spec]:
        return {name: spec for name, (_, spec) in self._fixed.items()} | self._made

    def _note_changes(self, before: Mapping[str, Spec]) -> None:
        now, now_ns = self._saved(), time.time_ns()
        for name in before.keys() | now.keys():
            if before.get(name) != now.get(name):
                self._versions.pop(name, None)
                self._changed_ns[name] = now_ns
        self._changed_ns = {name: at_ns for name, at_ns in self._changed_ns.items() if name in now}


class ApiFile:
    """``DIR/api.hocon``: replaced as a whole and atomically: at any instant it is the old one or the new one."""

    def __init__(self, file: Path, values: dict[str, Any]) -> None:
        self.path = file
        self._values = values
        self._seen = stamp_of(file)

    @property
    def values(self) -> dict[str, Any]:
        """What it holds; not to be changed."""
        return self._values

    def reread(self, values: dict[str, Any]) -> None:
        """The file was read again and holds these values."""
        self._values, self._seen = values, stamp_of(self.path)

    def put(self, path: KeyPath, objects: Sequence[Spec]) -> None:
        """Replace the objects at one path and leave everything else; raises as ``replace``."""
        self.replace(_replaced(self._values, path, list(objects)))

    def replace(self, values: dict[str, Any]) -> None:
        """Have the file hold these values.

        Raises:
            Unavailable: the file cannot be written, or another process wrote it; nothing changed.
        """
        saving(values != self._values)
        if stamp_of(self.path) != self._seen:
            raise Unavailable(
                f"{self.path} was edited after the broker read it, so nothing was written. Try: sluice config reload, "
                "which reads it"
            )
        try:
            replace_file(self.path, json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise Unavailable(f"{self.path} cannot be written ({reason}); nothing was changed") from error
        self._values, self._seen = values, stamp_of(self.path)


def _replaced(values: dict[str, Any], path: KeyPath, objects: list[Spec]) -> dict[str, Any]:
    if len(path) == 1:
        return {**values, path[0]: objects}
    inner = values.get(path[0])
    return {**values, path[0]: _replaced(inner if isinstance(inner, dict) else {}, path[1:], objects)}


def replace_file(file: Path, data: bytes) -> None:
    """Replace a file so that a crash at any instant leaves the old or the new one, on disk when this returns."""
    temporary = file.with_name(f"{file.name}.new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            os.fchmod(descriptor, 0o600)  # one left by a crash may have other rights
            opened.write(data)
            opened.flush()
            os.fsync(descriptor)
        temporary.replace(file)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
