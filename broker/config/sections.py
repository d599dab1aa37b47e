"""The sections of the configuration that hold objects.

Objects in ``sluice.conf`` are fixed by that file. Those in ``base.hocon`` may be replaced through the API, not deleted;
a reset returns to the file's. What the API makes is in ``DIR/api.hocon``, one file for all kinds. Hand-written objects
come first, in the order of their files, then the API's in the order they were saved. Of two with one name the stronger
layer's counts, as for settings.
"""

from __future__ import annotations

import copy
import errno
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Final, NamedTuple, TypeVar

from broker.config.assignments import HEADER, KeyPath, assign, line_of
from broker.config.file_names import API_FILE, BASE_FILE
from broker.config.layers import Layer
from broker.config.objects import LayerObjects
from broker.config.root import Config
from broker.config.stamp import stamp_of
from broker.core.errors import NotFound, ReadOnly, Unavailable
from broker.core.objects import (
    ObjectSection,
    SavedObject,
    Saves,
    Spec,
    Version,
    apply,
    etag_of,
    saving,
)
from broker.core.signals import Signal

T = TypeVar("T")


@dataclass(slots=True)
class Replaced:
    """Values of the API's file that were replaced, by key, and the order of objects that were there before."""

    values: dict[KeyPath, Any] = field(default_factory=dict)
    orders: dict[KeyPath, Sequence[str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.values or self.orders)


class _Found(NamedTuple):
    """Findings of a function in the objects of a section, by name, and the names that it has to look at."""

    findings: dict[str, Any]
    unseen: dict[str, None]


# An object before a change and after it.
Change = tuple[Spec | None, Spec | None]

# Bytes of changes below which the file is not rewritten.
_LEAST_BYTES: Final = 64 * 1024


class Sections:
    """Makes a section for each kind of objects that a configuration was loaded with."""

    def __init__(self, config: Config) -> None:
        paths = {name: tuple(name.split(".")) for name in config.objects}
        self.file = (
            None
            if config.api_file is None
            else ApiFile(config.api_file, config.api_layer, paths.values())
        )
        """File that the API writes; None without a data directory."""
        self._sections = {
            name: FileSection(paths[name], layers, self.file)
            for name, layers in config.objects.items()
        }

    @property
    def changes(self) -> int:
        """Number of reads and saves of sections; it grows with each change of an object or of their order."""
        return sum(section.changes for section in self._sections.values())

    def reload(self, config: Config) -> None:
        """Take the objects of a configuration that was read again, and what the API's file holds now."""
        if self.file is not None:
            self.file.reread(config.api_layer)
        for name, section in self._sections.items():
            section.read(config.objects[name])

    def follow(self, changes: Mapping[str, Mapping[str, Change]]) -> bool:
        """Take changes of objects that another process wrote, by section and name; False, and nothing taken, where the
        objects here were not what it replaced."""
        file = self.file
        if file is None or not file.is_followed:
            return False
        for path, objects in changes.items():
            section = self._sections[path]
            if not all(section.was(name, before) for name, (before, _) in objects.items()):
                return False
        for path, objects in changes.items():
            now = {name: after for name, (_, after) in objects.items()}
            self._sections[path].follow(now)
            file.follow({(*path.split("."), name): spec for name, spec in now.items()})
        return True

    def put(self, changes: Saves) -> None:
        """Write changes to the disk at once, before services make them; raises as ``ObjectSection.save``."""
        if self.file is not None:
            self.file.put(changes)

    def together(self) -> AbstractContextManager[None]:
        """Write everything saved inside the block to the disk at its end, or nothing if the block or the write
        raises."""
        return nullcontext() if self.file is None else self.file.together()

    def found(self, look: Callable[[Spec], T | None]) -> Iterator[tuple[str, str, T]]:
        """Section, name and finding of each object in which a function finds something. The function is called once
        for each object, and again when it has changed; it must be the same one in each call."""
        for path, section in self._sections.items():
            yield from ((path, name, finding) for name, finding in section.found(look).items())

    @contextmanager
    def unlocked(self) -> Iterator[None]:
        """Let services change objects that files fix, since those files have changed."""
        self._set_unlocked(True)
        try:
            yield
        finally:
            self._set_unlocked(False)

    def _set_unlocked(self, is_unlocked: bool) -> None:
        for section in self._sections.values():
            section.is_unlocked = is_unlocked
        if self.file is not None:
            self.file.is_taking_over = is_unlocked

    def all(self) -> dict[str, list[Spec]]:
        """The objects of each section in the order of their names; the caller must not change them."""
        return {path: section.all() for path, section in self._sections.items()}

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

    def __init__(
        self, path: KeyPath, layers: Sequence[LayerObjects], api_file: ApiFile | None
    ) -> None:
        self._path = path
        self._api_file = api_file
        self.is_unlocked = False
        """True while files that fix objects are being taken over."""
        self.changes = 0
        self._base: dict[str, tuple[str, Spec]] = {}
        self._fixed: dict[str, tuple[str, Spec]] = {}
        self._made: dict[str, Spec] = {}
        self._versions: dict[str, Version] = {}
        self._changed_ns: dict[str, int] = {}
        self._found: dict[Callable[[Spec], Any], _Found] = {}
        self.read(layers)
        self._changed_ns.clear()

    def read(self, layers: Sequence[LayerObjects]) -> None:
        """Replace the objects by those of the layers."""
        path = self._path
        before = self._saved()
        self._base = {}
        self._fixed = {}
        self._made = {}
        self._places: dict[str, str] = {}
        for layer_objects in layers:
            self._places |= layer_objects.places(path)
            if layer_objects.layer.file is not None and layer_objects.layer.file.name == API_FILE:
                self._made = {spec["name"]: spec for spec in layer_objects.objects}
                continue
            file = layer_objects.layer.file
            is_base = self._api_file is not None and file == self._api_file.path.with_name(
                BASE_FILE
            )
            for spec in layer_objects.objects:
                (self._base if is_base else self._fixed)[spec["name"]] = (
                    layer_objects.layer.name,
                    spec,
                )
                if not is_base:
                    self._made.pop(spec["name"], None)
        if self._api_file is not None:
            self._api_file.base[path] = {name: spec for name, (_, spec) in self._base.items()}
        now = self._saved()
        self._note_changes(
            [name for name in before.keys() | now.keys() if before.get(name) != now.get(name)]
        )

    def all(self) -> list[Spec]:
        """See ``Sections.all``."""
        saved = self._saved()
        return [saved[name] for name in sorted(saved)]

    def load(self) -> list[Spec]:
        """All objects in order; the caller may change what it gets."""
        return copy.deepcopy(list(self._saved().values()))

    def found(self, look: Callable[[Spec], T | None]) -> Mapping[str, T]:
        """See ``Sections.found``; by name."""
        earlier = self._found.get(look)
        if earlier is None:
            earlier = self._found[look] = _Found({}, dict.fromkeys(self._saved()))
        findings, unseen = earlier
        for name in unseen:
            finding = look(self.saved(name)) if self._has(name) else None
            if finding:
                findings[name] = finding
            else:
                findings.pop(name, None)
        unseen.clear()
        return findings

    def save(self, changes: Mapping[str, Spec | None]) -> None:
        """Write the API's among the objects; returns when they are on disk. Fixed ones are not written."""
        own_changes = {
            name: copy.deepcopy(spec)
            for name, spec in changes.items()
            if not self._is_of_file(name, spec)
        }
        for name, spec in own_changes.items():
            if spec is None and name in self._base and not self.is_unlocked:
                raise ReadOnly(_undeletable(name, self._base[name][0]))
        changed = [name for name, spec in own_changes.items() if self._made.get(name) != spec]
        saves = {(*self._path, name): spec for name, spec in own_changes.items()}
        self._file(bool(changed), saves).put(saves)
        apply(self._made, own_changes)
        self._note_changes(changed)

    def was(self, name: str, before: Spec | None) -> bool:
        """True if the API has saved an object so, None if not at all, and no file has one of that name."""
        is_of_file = name in self._fixed or name in self._base
        return not is_of_file and self._made.get(name) == before

    def follow(self, changes: Mapping[str, Spec | None]) -> None:
        """Take objects that another process has saved, None for those that it deleted."""
        apply(self._made, changes)
        self._note_changes(changes)

    def _is_of_file(self, name: str, spec: Spec | None) -> bool:
        """True if a file has the object, and the API need not save it."""
        if name in self._fixed:
            return True
        is_base = name in self._base and name not in self._made
        return is_base and (self.is_unlocked or spec == self._base[name][1])

    def base(self, name: str) -> Spec | None:
        """The object as ``base.hocon`` has it; None if it does not, or a stronger file fixes it.

        Raises:
            ReadOnly: the object is that of the file, so there is nothing to reset.
        """
        if name not in self._base or name in self._fixed:
            return None
        file, spec = self._base[name]
        if name not in self._made:
            raise ReadOnly(_undeletable(name, file))
        return copy.deepcopy(spec)

    def forget(self, name: str) -> None:
        """Remove what the API has saved of an object that ``base.hocon`` has."""
        self._file(True).put({(*self._path, name): None})
        self._made.pop(name, None)
        self._note_changes([name])

    def reorder(self, names: Sequence[str]) -> None:
        """Write the API's objects in this order; returns when it is on disk."""
        reordered = {name: self._made[name] for name in names if name in self._made}
        self._file(list(reordered) != list(self._made)).order(self._path, list(reordered))
        self._made = reordered
        self.changes += 1

    def fixed_by(self, name: str) -> str | None:
        """The file that fixes the object, or None."""
        fixed = self._fixed.get(name)
        return None if fixed is None or self.is_unlocked else fixed[0]

    def defined_by(self, name: str) -> str | None:
        """The file that has the object at the next start too, whatever the API saves; or None."""
        return self.fixed_by(name) or (self._base[name][0] if name in self._base else None)

    def where(self, name: str) -> str:
        """The file and line of the object when the broker started, else the API's file."""
        return self._places.get(name) or (
            API_FILE if self._api_file is None else str(self._api_file.path)
        )

    def saved(self, name: str) -> Spec:
        """An object of the section, as it is saved; not to be changed."""
        if name in self._made:
            return self._made[name]
        return (self._fixed.get(name) or self._base[name])[1]

    def version(self, name: str) -> Version:
        """The version of an object that is in the section; its digest is made when it is first asked for."""
        version = self._versions.get(name)
        if version is None:
            version = self._versions[name] = Version(
                etag_of(self.saved(name)), self._changed_ns.get(name)
            )
        return version

    def _file(self, changes: bool, saves: Saves | None = None) -> ApiFile:
        if self._api_file is None:
            raise Unavailable(
                "objects cannot be saved without a data directory; start with --data-dir"
            )
        saving(changes, saves)
        return self._api_file

    def _saved(self) -> dict[str, Spec]:
        files = {name: spec for name, (_, spec) in (self._base | self._fixed).items()}
        return files | self._made

    def _has(self, name: str) -> bool:
        return name in self._made or name in self._fixed or name in self._base

    def _note_changes(self, names: Iterable[str]) -> None:
        now_ns = time.time_ns()
        self.changes += 1
        for name in names:
            self._versions.pop(name, None)
            for _, unseen in self._found.values():
                unseen[name] = None
            if self._has(name):
                self._changed_ns[name] = now_ns
            else:
                self._changed_ns.pop(name, None)


def _undeletable(name: str, file: str) -> str:
    return f"{name!r} is defined by {file}: change or disable it, or take it out there"


class ApiFile:
    """``DIR/api.hocon``, to which each save adds a line (``broker.config.assignments``).

    When it is twice as long as it was, a thread writes it again without what later lines replaced. A file that was
    written in any other form is replaced as a whole by the first save.
    """

    def __init__(self, file: Path, read: Layer, sections: Iterable[KeyPath]) -> None:
        self.path = file
        self.on_change = Signal[SavedObject]()
        """Signal with each object that was saved, and with a section that has another order; not while objects that
        files fix are taken over, which are in this file for a moment."""
        self.is_taking_over = False
        self.is_followed = False
        """True if another process writes the file: this one takes over what it holds, and writes nothing."""
        self._replaced: Replaced | None = None
        self.base: dict[KeyPath, Mapping[str, Spec]] = {}
        """Objects of ``base.hocon`` by section: they are there again where this file loses theirs."""
        self._sections = frozenset(sections)
        self._above = {path[:length] for path in self._sections for length in range(len(path))}
        self._held: dict[KeyPath, Any] | None = None
        self._lock, self._compacting = Lock(), Thread()
        self.reread(read)

    @property
    def values(self) -> dict[str, Any]:
        """Its content, objects by name; read only."""
        return self._values

    def content(self) -> bytes:
        """Bytes of the file on disk; none before its first save. Blocking; for any thread."""
        with self._lock:
            return self.path.read_bytes() if self.path.exists() else b""

    def text_of(self, values: Mapping[str, Any]) -> bytes:
        """Content of a file that holds other values."""
        return self._data(self._copied(values, ()))

    def reread(self, read: Layer) -> None:
        """The file was read again and holds this."""
        with self._lock:
            self._values: dict[str, Any] = self._copied(read.values, ())
            self._is_lines, self._seen, self._missed = (
                read.is_lines,
                stamp_of(self.path),
                list[bytes](),
            )
            self._size = self.path.stat().st_size if read.is_lines else 0
            self._size_before = len(self._data(self._values)) if read.is_lines else 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """See ``Sections.together``."""
        self._held = gathered = dict[KeyPath, Any]()
        try:
            yield
        finally:
            self._held = None
        self.put(gathered)

    def changes_of(self, replaced: Replaced) -> dict[str, dict[str, Change]] | None:
        """The objects whose values were replaced, by section and name, before and now; None where other values or
        orders are among them."""
        changes: dict[str, dict[str, Change]] = {}
        for path, before in replaced.values.items():
            if path[:-1] not in self._sections:
                return None
            was, now = (
                None if value is None else {"name": path[-1], **value}
                for value in (before, self._at(path))
            )
            changes.setdefault(".".join(path[:-1]), {})[path[-1]] = (was, now)
        shrunk = {path[:-1] for path in replaced.values if self._at(path) is None}
        return changes if replaced.orders.keys() <= shrunk else None

    @contextmanager
    def noting(self) -> Iterator[Replaced]:
        """Note what writes inside the block replace, for ``put_back``. One block at a time."""
        self._replaced = replaced = Replaced()
        try:
            yield replaced
        finally:
            self._replaced = None

    def put_back(self, replaced: Replaced) -> None:
        """Write values again that were replaced; raises as ``put``."""
        self.put(replaced.values)
        for path, names in replaced.orders.items():
            self.order(path, names)

    def put(self, changes: Mapping[KeyPath, Any]) -> None:
        """Assign values to keys, None to remove them; returns when it is on disk.

        Raises:
            Unavailable: the file cannot be written, or another process wrote it; nothing changed.
        """
        if self._held is not None:
            self._held |= changes
            return
        before = {path: self._at(path) for path in changes}
        changes = {path: value for path, value in changes.items() if before[path] != value}
        if not changes:
            return
        shrinking = {
            path[:-1]
            for path, value in changes.items()
            if value is None and path[:-1] in self._sections
        }
        orders = {path: list(self._at(path) or ()) for path in shrinking}
        if self._replaced is not None:
            self._replaced.values = {path: before[path] for path in changes} | self._replaced.values
            self._replaced.orders = {**orders, **self._replaced.orders}
        self._write(changes, [path for path, value in before.items() if value is not None])
        for path, value in changes.items():
            section = path[:-1]
            if section in self._sections and not self.is_taking_over:
                order = orders[section] if value is None else ()
                base = self.base.get(section, {}).get(path[-1])
                was = base if before[path] is None else before[path]
                now = base if value is None else value
                self.on_change(SavedObject(".".join(section), path[-1], was, now, order))

    def follow(self, changes: Mapping[KeyPath, Any]) -> None:
        """Take values that another process has written."""
        with self._lock:
            for path, value in changes.items():
                assign(self._values, path, value)
            self._seen = stamp_of(self.path)

    def set(self, section: str, value: Any) -> None:
        """Set the value of a section of settings, with its objects; raises as ``put``."""
        before = self._values.get(section)
        saving(before != value)
        self.put(dict(self._differences(before, value, (section,))))

    def order(self, path: KeyPath, names: Sequence[str]) -> None:
        """Bring the objects at a path into this order; raises as ``put``."""
        objects = self._at(path) or {}
        reordered = {name: objects[name] for name in names if name in objects} | objects
        if self._replaced is not None:
            self._replaced.orders.setdefault(path, list(objects))
        self._write({path: reordered}, [path])
        if not self.is_taking_over:
            self.on_change(
                SavedObject(".".join(path), "", None, None, list(objects), list(reordered))
            )

    def _write(self, changes: Mapping[KeyPath, Any], present: Collection[KeyPath]) -> None:
        if self.is_followed:
            if self.is_taking_over:
                return
            raise Unavailable(f"{self.path} is written by cell 0 only; nothing was changed")
        with self._lock:
            if stamp_of(self.path) != self._seen:
                raise Unavailable(
                    f"{self.path} was edited after the broker read it, so nothing was written. Try: sluice config "
                    "reload, which reads it"
                )
            after = self._values if self._is_lines else self._copied(self._values, ())
            try:
                if self._is_lines:
                    self._append(line_of(changes, present))
                for path, value in changes.items():
                    assign(after, path, value)
                if not self._is_lines:
                    data = self._data(after)
                    replace_file(self.path, data)
                    self._size = self._size_before = len(data)
            except OSError as error:
                self._is_lines = False
                reason = (error.strerror or str(error)).lower()
                raise Unavailable(
                    f"{self.path} cannot be written ({reason}); nothing was changed"
                ) from error
            finally:
                self._seen = stamp_of(self.path)
            self._values = after
            self._is_lines = True
            if (
                self._size > 2 * self._size_before + _LEAST_BYTES
                and not self._compacting.is_alive()
            ):
                self._missed, values = [], self._copied(self._values, ())
                self._compacting = Thread(
                    target=self._compact, args=(values, self._missed), name="compaction"
                )
                self._compacting.start()

    def _append(self, line: str) -> None:
        data = line.encode()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, self._size)
            raise
        finally:
            os.close(descriptor)
        self._size += len(data)
        self._missed.append(data)

    def _compact(self, values: dict[str, Any], missed: list[bytes]) -> None:
        """Replace the file by one with a line for each value; on a thread. ``missed`` gets the lines added while it
        runs."""
        temporary = self.path.with_name(f"{self.path.name}.compact")
        try:
            _write(temporary, self._data(values))
            with self._lock:
                if self._missed is missed and self._is_lines and stamp_of(self.path) == self._seen:
                    _write(temporary, b"".join(missed), os.O_APPEND)
                    _put_in_place(temporary, self.path)
                    self._seen, self._size = stamp_of(self.path), self.path.stat().st_size
        except OSError:
            pass  # it is complete as it is, only longer; tried again when it has doubled
        finally:
            self._size_before = self._size
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _data(self, values: dict[str, Any]) -> bytes:
        lines = [line_of({path: value}) for path, value in self._differences({}, values, ())]
        return "".join((HEADER, *lines)).encode()

    def _differences(self, before: Any, after: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
        """The keys that have other values, those of single objects where there are objects."""
        is_inside = path in self._above or path in self._sections
        if is_inside and isinstance(after, dict) and isinstance(before, dict | None):
            before = before or {}
            for key in {**before, **after}:
                yield from self._differences(before.get(key), after.get(key), (*path, key))
        elif before != after:
            yield path, after

    def _copied(self, value: Any, path: KeyPath) -> Any:
        """The same values in other dictionaries, down to those of objects by name."""
        if path in self._sections:
            return (
                {spec["name"]: spec for spec in value}
                if isinstance(value, list)
                else dict(value or {})
            )
        if path in self._above and isinstance(value, dict):
            return {key: self._copied(inner, (*path, key)) for key, inner in value.items()}
        return value

    def _at(self, path: KeyPath) -> Any:
        value: Any = self._values
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value


def replace_file(file: Path, data: bytes) -> None:
    """Replace a file so that a crash at any instant leaves the old or the new one, on disk when this returns."""
    temporary = file.with_name(f"{file.name}.new")
    try:
        _write(temporary, data)
        _put_in_place(temporary, file)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _write(file: Path, data: bytes, how: int = os.O_TRUNC) -> None:
    """Write these bytes to a file with access for the owner only; they are on disk when this returns."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | how, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        os.fchmod(descriptor, 0o600)  # one left by a crash may have other rights
        opened.write(data)
        opened.flush()
        os.fsync(descriptor)


def _put_in_place(temporary: Path, file: Path) -> None:
    temporary.replace(file)
    directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
