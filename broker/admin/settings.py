"""Settings by key path: read, change and reset, while the broker runs.

A key is written as in files, items of lists by their number: ``mqtt.max_packet_size``,
``mqtt.client_attrs_init[0].expression``. What is changed here is kept in the API's file. ``sluice.conf``, the
environment and the command line are stronger: what they set is changed there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, NotRequired, Protocol

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from broker.admin.named_files import check_files
from broker.config.assignments import KeyPath
from broker.config.model import Settings
from broker.config.objects import without_objects
from broker.config.reference import SettingEntry, find_entry
from broker.config.root import Config, SettingsFiles
from broker.config.secret_text import check_moved, reference_problems, with_stored
from broker.config.spec_problems import parsed
from broker.core.errors import ConfigError, Invalid, NotFound, Problem, ReadOnly, did_you_mean
from broker.core.kinds import object_sections
from broker.core.objects import Listed, Spec, Version, etag_of, merged

# Settings that bound what the API may do on this machine, name its files and other systems, or say who is an
# administrator, and settings that are objects with an address of their own; with the place to change them.
_IN_FILES: Final = "set it in sluice.conf, then run 'sluice config reload'"
NOT_BY_KEY: Final[Mapping[str, str]] = {
    "allowed": _IN_FILES,
    "api.allow_clear_text": _IN_FILES,
    "api.oidc": _IN_FILES,
    "log.file": _IN_FILES,
    "range_server.certfile": _IN_FILES,
    "range_server.keyfile": _IN_FILES,
    "rule_engine.ssrf": _IN_FILES,
    "lake.directory": _IN_FILES,
    "lake.stores": _IN_FILES,
    "lake.catalogs": _IN_FILES,
    "authentication": "sluice access authenticators apply",
    "authorization.sources": "sluice access sources apply",
}
# Maximum parts of a key, and digits of the number of an item.
_MOST_PARTS: Final = 32
_MOST_DIGITS: Final = 6
_PART: Final = re.compile(r'\.?(?:([\w-]+)|"((?:[^"\\]|\\.)*)")|\[(\d{1,6})\]', re.ASCII)
_BARE: Final = re.compile(r"[\w-]+", re.ASCII)
_READ_ONLY: Final = frozenset(
    (
        "group",
        "type",
        "default",
        "description",
        "set_by",
        "needs_restart",
        "changed_by",
        "changed_at",
        "in_files",
    )
)


class SettingSpec(Settings):
    """A setting as it is changed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str = Field(default="", description="Its key; that of the path.")
    value: Any = Field(
        description="Its value, as in files: a number, `true`, `2MB`, `30s`, a list or an object."
    )
    is_saved: bool = Field(
        default=True,
        description="Whether the API keeps the value. False: only where the next weaker layer has another one.",
    )


class SettingSource(TypedDict):
    """The value of a setting, and who set it: a file with its line, an environment variable, the command line, or
    `default`. Secrets are masked."""

    value: Any
    set_by: str


class SettingRow(TypedDict):
    """An active setting. `set_by` is a file with its line, an environment variable, the command line, or `default`;
    `in_files` is present where the files have another value by now. Secrets are masked."""

    key: str
    group: str
    type: str | None
    value: Any
    set_by: str
    needs_restart: bool
    description: str
    in_files: NotRequired[SettingSource]


class SettingView(SettingRow):
    """A setting, or the object of all settings below a key. `is_saved` says that the API's file has a value of it;
    `changed_by` and `changed_at` say who changed it last through the API."""

    default: str | None
    is_saved: bool
    changed_by: str | None
    changed_at: str | None


class SettingsTree(TypedDict):
    """All active settings in the shape of the files. Secrets are masked."""

    value: dict[str, Any]


Edit = Callable[[Any], Any]


class ActiveConfig(Protocol):
    """The configuration of a running broker (``broker.app.reload``)."""

    @property
    def config(self) -> Config:
        """The configuration that was read last."""
        ...

    @property
    def in_force(self) -> Config:
        """The same with the values that are active."""
        ...

    def origin(self, path: KeyPath) -> str: ...

    def needs_restart(self, path: KeyPath) -> bool: ...

    def saved(self, path: KeyPath) -> Any: ...

    def last_change(self, key: str) -> Mapping[str, str] | None: ...

    async def read_files(self) -> tuple[Config, list[str]]: ...

    async def change(
        self,
        root: str,
        edit: Edit,
        *,
        check: Callable[[Config], None],
        drain: bool = False,
        name: str = "",
    ) -> None: ...


class _OtherResult(Exception):
    """A reset would give another value than the one that was sent."""


class _View:
    """The settings at one time: active, as they were read last, and as the files have them."""

    def __init__(self, active: ActiveConfig, files: Config) -> None:
        self._active = active
        self._files = files
        in_force = active.in_force
        self._tree = in_force.effective()
        self._written = files.effective()
        self._late = in_force.differences(files)

    def rows(self) -> Listed:
        """Every setting, in order of keys; each row is worked out when it is read."""
        paths = dict.fromkeys((*_leaf_paths(self._tree, ()), *_leaf_paths(self._written, ())))
        by_key = {self.key(path): path for path in paths}
        return Listed(list(by_key), lambda key: self.row(by_key[key]))

    def key(self, path: KeyPath) -> str:
        return _text(self._tree if _at(self._tree, path, None) is not None else self._written, path)

    def entry(self, path: KeyPath) -> SettingEntry:
        """The help of a setting."""
        return find_entry(self._active.config.models, path) or SettingEntry("", "object", None, "")

    def row(self, path: KeyPath) -> SettingRow:
        entry = self.entry(path)
        is_late = any(
            path[: len(other)] == other or other[: len(path)] == path for other in self._late
        )
        row: SettingRow = {
            "key": self.key(path),
            "group": path[0],
            "type": entry.type,
            "value": _at(self._tree, path, None),
            "set_by": self._active.origin(path) if is_late else self._files.origin_of(path),
            "needs_restart": self._active.needs_restart(path),
            "description": entry.description,
        }
        if is_late:
            row["in_files"] = {
                "value": _at(self._written, path, None),
                "set_by": self._files.origin_of(path),
            }
        return row


class SettingService:
    """Lists, shows, changes and resets settings."""

    kind: Final = "setting"

    def __init__(self, active: ActiveConfig) -> None:
        self._active = active
        self._sections = frozenset(tuple(name.split(".")) for name in object_sections())
        self._read: tuple[Config, Config] | None = None

    def list(self) -> Sequence[Mapping[str, Any]]:
        """Every setting, in order of keys; ``in_files`` is as the files were read last."""
        return self._view.rows()

    @property
    def _view(self) -> _View:
        config = self._active.config
        files = config if self._read is None or self._read[0] is not config else self._read[1]
        return _View(self._active, files)

    def get(self, name: str) -> SettingView:
        """A setting, or all settings below a key; raises ``NotFound``."""
        path = _parsed(name)
        self._value(path, name)
        row = self._view.row(path)
        changed = self._active.last_change(row["key"]) or {}
        return {
            **row,
            "default": self._view.entry(path).default,
            "is_saved": self._saved(path) is not None,
            "changed_by": changed.get("by"),
            "changed_at": changed.get("at"),
        }

    def tree(self) -> SettingsTree:
        """All active settings in the shape of the files."""
        return {"value": self._active.in_force.effective()}

    async def files(self) -> SettingsFiles:
        """The files that are read, with their problems, and the settings that differ in them or wait for a restart."""
        config = self._active.config
        files, problems = await self._active.read_files()
        self._read = (config, files)
        in_force = self._active.in_force
        return {
            "files": files.files,
            "problems": problems,
            "pending": [".".join(path) for path in in_force.differences(files)],
        }

    def saved_version(self, name: str) -> Version:
        """The version of a setting; raises ``NotFound``."""
        path = _parsed(name)
        value = self._value(path, name)
        return Version(etag_of({"value": value, "saved": self._saved(path)}))

    def patched(self, name: str, patch: Spec) -> Spec:
        """The spec with some members changed (JSON Merge Patch): a null inside the value resets what it names."""
        saved = deepcopy(self._saved(_parsed(name)))
        spec: Spec = merged({"value": saved, "is_saved": saved is not None}, patch)
        if "value" in patch and "is_saved" not in patch:
            spec["is_saved"] = patch["value"] is not None
        return spec

    async def create(self, spec: Spec) -> SettingView:
        """Set a setting that has no value yet, as of a new zone; raises as ``replace``."""
        return await self.replace(str(spec.get("key", "")), spec)

    async def replace(self, name: str, spec: Spec) -> SettingView:
        """Check, apply and save a value; an object replaces all that the API has saved below the key.

        Raises:
            Invalid: with every problem; nothing was changed.
            ReadOnly: a stronger layer sets it, or it is set in files only.
            Conflict: files changed since they were read.
        """
        path = _parsed(name)
        setting = parsed(SettingSpec, spec, f"setting {name!r} cannot be saved", ignored=_READ_ONLY)
        if not setting.is_saved:
            try:
                await self._change(path, name, None, result=setting.value)
            except _OtherResult:
                pass
            else:
                return self.get(name)
        await self._change(path, name, setting.value)
        return self.get(name)

    async def delete(self, name: str) -> None:
        """Reset a setting to the value of the next weaker layer; raises as ``replace``, and ``NotFound``."""
        path = _parsed(name)
        self._value(path, name)
        await self._change(path, name, None)

    def _value(self, path: KeyPath, name: str) -> Any:
        """The active value; None if a setting only waits for a restart. Raises ``NotFound``."""
        value = _at(self._active.in_force.effective(), path, None)
        if value is None:
            _at(self._active.config.effective(), path, name)
        return value

    def _saved(self, path: KeyPath) -> Any:
        """The value at a path in the API's file, without objects; None if it has none."""
        saved = self._active.saved(path)
        if not isinstance(saved, dict):
            return saved
        return _at(without_objects(_nested(path, saved), self._sections), path, None) or None

    async def _change(self, path: KeyPath, name: str, value: Any, result: Any = None) -> None:
        """Set a value, or reset it with None; then only where it becomes the ``result``, if there is one."""
        tree = self._active.config.effective()
        shown = _at(tree, path, None)
        place, value = self._whole_list(tree, path, name, value)
        if isinstance(value, dict):
            value = _without_same(value, shown, self._saved(place))
        self._check_may_change(place, value)
        if value is not None:
            value = with_stored(value, self._active.config.raw(place))
            check_files(_nested(place, value))

        def edit(root: Any) -> Any:
            kept = {} if root is None else {path[0]: root}
            return _put(kept, place, value, self._sections).get(path[0])

        def check(config: Config) -> None:
            if result is not None and _at(config.effective(), path, None) != result:
                raise _OtherResult
            self._check_hidden(config, place, value)
            self._check_secrets(config, name, value)

        try:
            await self._active.change(path[0], edit, check=check, name=name)
        except ConfigError as error:
            stays = f"; it stays {json.dumps(shown)}" if shown is not None else ""
            file = f"{self._active.config.api_file}: "
            problems = [Problem(problem.removeprefix(file), "/value") for problem in error.problems]
            raise Invalid(f"setting {name!r} cannot be saved{stays}", problems) from None

    def _check_may_change(self, path: KeyPath, value: Any) -> None:
        for key, where in NOT_BY_KEY.items():
            closed = tuple(key.split("."))
            if path[: len(closed)] == closed or (
                isinstance(value, dict) and _names(value, closed[len(path) :], path, closed)
            ):
                raise ReadOnly(f"setting {key!r} is not changed by its key. Try: {where}")
        for section in self._sections:
            if path[: len(section)] == section or (
                isinstance(value, dict) and _names(value, section[len(path) :], path, section)
            ):
                raise ReadOnly(
                    f"{'.'.join(section)!r} has objects, which have an address of their own"
                )

    def _whole_list(
        self, tree: Mapping[str, Any], path: KeyPath, name: str, value: Any
    ) -> tuple[KeyPath, Any]:
        """The path of the list that a path goes into, with the list as it becomes; else both as they are."""
        node: Any = tree
        for length, part in enumerate(path):
            if isinstance(node, list):
                place = path[:length]
                if value is None:
                    problem = Problem("one item cannot be reset alone; change or reset the list")
                    raise Invalid(f"setting {name!r} cannot be reset", [problem])
                items = self._active.config.raw(place)
                changed = deepcopy(items) if isinstance(items, list) else deepcopy(node)
                _set_item(changed, path[length:], value, name)
                return place, changed
            node = node.get(part) if isinstance(node, dict) else None
        return path, value

    def _check_hidden(self, config: Config, path: KeyPath, value: Any) -> None:
        for leaf in _leaf_paths(value, path):
            if (where := config.stronger(leaf)) is not None and (
                value is not None or self._saved(path) is None
            ):
                raise ReadOnly(f"setting {'.'.join(leaf)!r} is set by {where}; change it there")

    def _check_secrets(self, config: Config, name: str, value: Any) -> None:
        before = self._active.config.sections
        for section, settings in config.sections.items():
            if settings != before[section]:
                check_moved(f"setting {name!r}", value, settings, before[section])
                if problems := reference_problems(settings, "/value"):
                    raise Invalid(f"setting {name!r} cannot be saved", problems)


def _parsed(name: str) -> KeyPath:
    """The parts of a key.

    Raises:
        Invalid: it is not a key.
    """
    parts: list[str] = []
    at = 0
    while at < len(name):
        match = _PART.match(name, at)
        if match is None or len(parts) == _MOST_PARTS or (parts and name[at] not in ".["):
            break
        bare, quoted, number = match.groups()
        try:
            part = bare or number or json.loads(f'"{quoted}"', strict=False)
            part.encode()
        except ValueError:  # an escape that JSON does not have, or half of a character
            break
        parts.append(part)
        at = match.end()
    if not parts or at < len(name):
        problem = Problem(
            'expected a key such as mqtt.max_packet_size or mqtt.client_attrs_init[0]."set as"',
            "/key",
        )
        raise Invalid(f"{name[:200]!r} is not a key of a setting", [problem])
    return tuple(parts)


def _text(tree: Any, path: KeyPath) -> str:
    """A key as it is written; ``tree`` says which parts are numbers of items."""
    text = ""
    for part in path:
        is_item = isinstance(tree, list)
        quoted = part if _BARE.fullmatch(part) else json.dumps(part, ensure_ascii=False)
        text += f"[{part}]" if is_item else f".{quoted}" if text else quoted
        tree = _inside(tree, part)
    return text


def _is_number(part: str) -> bool:
    return part.isdecimal() and len(part) <= _MOST_DIGITS


def _inside(node: Any, part: str) -> Any:
    if isinstance(node, list):
        return node[int(part)] if _is_number(part) and int(part) < len(node) else None
    return node.get(part) if isinstance(node, dict) else None


def _at(tree: Any, path: KeyPath, name: str | None) -> Any:
    """The value at a path; where ``name`` is given, ``NotFound`` is raised if there is none."""
    for part in path:
        is_there = part in tree if isinstance(tree, dict) else _inside(tree, part) is not None
        if not is_there:
            if name is None:
                return None
            similar = did_you_mean(part, tree) if isinstance(tree, dict) else None
            hint = f"{similar}; " if similar else ""
            raise NotFound("setting", name, f"{hint}'sluice config show' lists all")
        tree = _inside(tree, part)
    return tree


def _leaf_paths(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaf_paths(inner, (*path, key))
    else:
        yield path


def _names(value: Any, rest: KeyPath, path: KeyPath, closed: KeyPath) -> bool:
    """True if an object at a path has a value below it at the rest of a longer path."""
    if closed[: len(path)] != path:
        return False
    for part in rest:
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return True


def _nested(path: KeyPath, value: Any) -> Spec:
    for part in reversed(path):
        value = {part: value}
    return dict(value)


def _without_same(value: Mapping[str, Any], shown: Any, saved: Any) -> Spec:
    """An object without the values that are active and that the API has not saved: they stay with their layer."""
    result: Spec = {}
    for key, inner in value.items():
        shown_inner = shown.get(key) if isinstance(shown, dict) else None
        saved_inner = saved.get(key) if isinstance(saved, dict) else None
        if isinstance(inner, dict) and isinstance(shown_inner, dict):
            inner = _without_same(inner, shown_inner, saved_inner)
            if not inner and saved_inner is None:
                continue
        elif inner == shown_inner and saved_inner is None:
            continue
        result[key] = inner
    return result


def _set_item(items: Any, path: KeyPath, value: Any, name: str) -> None:
    """Set a value inside a list; the number behind the last one adds an item."""
    *above, last = path
    for part in above:
        items = _inside(items, part)
    if isinstance(items, list) and _is_number(last) and int(last) <= len(items):
        items[int(last) : int(last) + 1] = [value]
    elif isinstance(items, dict):
        items[last] = value
    else:
        raise NotFound("setting", name, "'sluice config show' lists all")


def _put(
    tree: Spec, path: KeyPath, value: Any, objects: frozenset[KeyPath], above: KeyPath = ()
) -> Spec:
    """A tree of saved values with another one at a path, None to remove it; objects below it stay."""
    first, *rest = path
    place = (*above, first)
    if rest:
        inner = tree.get(first)
        changed: Any = _put(
            inner if isinstance(inner, dict) else {}, tuple(rest), value, objects, place
        )
    else:
        kept = _objects_only(tree.get(first), place, objects)
        changed = {**(value or {}), **kept} if kept else value
    result = {key: item for key, item in tree.items() if key != first}
    return (
        result if changed in (None, {}) and (value is None or rest) else {**result, first: changed}
    )


def _objects_only(value: Any, path: KeyPath, objects: frozenset[KeyPath]) -> Spec:
    if not isinstance(value, dict):
        return {}
    kept: Spec = {}
    for key, inner in value.items():
        place = (*path, key)
        if place in objects:
            kept[key] = inner
        elif below := _objects_only(inner, place, objects):
            kept[key] = below
    return kept
