"""Joins the settings models it is given into one configuration, and validates all of it at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, overload

from pydantic import BaseModel, ValidationError
from typing_extensions import TypedDict

from broker.config.assignments import KeyPath
from broker.config.file_names import API_FILE, BASE_FILE
from broker.config.hocon_reader import HoconError
from broker.config.layers import (
    Layer,
    api_layer,
    environment_layer,
    file_layer,
    find_main_files,
    merged,
    override_layer,
    setter,
)
from broker.config.model import Settings
from broker.config.objects import LayerObjects, objects_in, without_objects
from broker.config.problems import hint, sentence
from broker.config.reference import SettingEntry, describe
from broker.core import jsontext
from broker.core.errors import ConfigError, NotFound
from broker.core.kinds import Kind, object_sections
from broker.core.objects import Spec

_Model = TypeVar("_Model", bound=Settings)
# Settings models by their place in the configuration, as ``mqtt`` or ``listeners.tcp.default``.
Models = Mapping[str, type[Settings]]


class SettingsFiles(TypedDict):
    """The files that were read, their present problems, and the keys that have other values in them, or wait for a
    restart."""

    files: list[str]
    problems: list[str]
    pending: list[str]


class ChangedListeners(TypedDict):
    """The listeners that were added, removed and changed, by their identifiers."""

    added: list[str]
    removed: list[str]
    changed: list[str]


class ReloadedConfig(TypedDict):
    """Result of a reload: keys of settings, listeners, and objects, a sentence each. ``failed`` are sentences about
    objects that could not be changed, ``needs_restart`` the keys and sections that wait for a restart."""

    files: list[str]
    settings: list[str]
    listeners: ChangedListeners
    objects: list[str]
    failed: list[str]
    needs_restart: list[str]


_NO_OPTIONS: Final[Mapping[str, Any]] = {}


class ChangedObject(NamedTuple):
    """An object that a reload changes; ``before`` is None where it is added, ``after`` where it is removed. ``options``
    are those of the reload that matter to it."""

    kind: Kind
    name: str
    before: Spec | None
    after: Spec | None
    options: Mapping[str, Any] = _NO_OPTIONS

    @property
    def what(self) -> str:
        """``added``, ``changed`` or ``removed``."""
        return "added" if self.before is None else "removed" if self.after is None else "changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReload:
    """Changes that a reload would make: the values of settings by key, with secrets masked, and objects, listeners
    among them. ``needs_restart`` are the keys and sections that wait for a restart."""

    before: Spec
    after: Spec
    objects: Sequence[ChangedObject]
    needs_restart: Sequence[str]


class Config:
    """The active settings, with their sources."""

    def __init__(
        self,
        sections: Mapping[str, Settings],
        layers: Sequence[Layer],
        objects: Mapping[str, Sequence[LayerObjects]],
        api_file: Path | None,
    ) -> None:
        self._sections, self._layers = dict(sections), tuple(layers)
        self.objects = objects
        """Objects of each kind by layer, weakest first; ``broker.config.sections`` makes sections of them."""
        self.api_file = api_file
        """The file that the API writes; None when there is no data directory."""

    @property
    def files(self) -> list[str]:
        """The files that were read, weakest first, without what they include."""
        return [str(layer.file) for layer in self._layers if layer.file is not None]

    @property
    def api_layer(self) -> Layer:
        """Content of the API's file when it was read."""
        api_layers = (
            layer
            for layer in self._layers
            if layer.file is not None and layer.file == self.api_file
        )
        return next(api_layers, Layer(API_FILE, {}))

    @overload
    def get(self, section: str) -> Any: ...
    @overload
    def get(self, section: str, model: type[_Model]) -> _Model: ...
    def get(self, section: str, model: type[Settings] = Settings) -> Any:
        """The settings of a section, checked to be of the model asked for.

        Raises:
            NotFound: no such section was loaded.
        """
        settings = self._sections.get(section)
        if settings is None:
            raise NotFound("section of the configuration", section)
        if not isinstance(settings, model):
            raise TypeError(
                f"section {section!r} is {type(settings).__name__}, not {model.__name__}"
            )
        return settings

    @property
    def sections(self) -> Mapping[str, Settings]:
        """All settings by the name of their section."""
        return self._sections

    def origin(self, key: str) -> str:
        """Source of a key: ``sluice.conf line 4``, ``environment variable SLUICE_...``, ``command line``,
        ``default``."""
        return self.origin_of(tuple(key.split(".")))

    def origin_of(self, path: KeyPath) -> str:
        """The same by the parts of the key."""
        layer = setter(self._layers, path)
        return layer.where(path) if layer is not None else "default"

    def stronger(self, path: KeyPath) -> str | None:
        """The place over the API's file that sets a key, or None."""
        layer = setter(self._layers, path)
        files = [layer.file for layer in self._layers]
        above = (
            self._layers[files.index(self.api_file) + 1 :]
            if self.api_file in files
            else self._layers
        )
        return layer.where(path) if layer is not None and layer in above else None

    def raw(self, path: KeyPath) -> Any:
        """The value at a path as the layers have it, secrets as they are written; None where all leave the default."""
        value: Any = merged(self._layers)
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def files_digest(self) -> str:
        """Digest of the content of all files but the API's, the same in each cell that has read them."""
        values = {
            str(layer.file): layer.values
            for layer in self._layers
            if layer.file is not None and layer.file != self.api_file
        }
        return sha256(jsontext.encode(values)).hexdigest()

    def other_layers(self, other: Config) -> list[str]:
        """The layers that differ from those of another configuration, the API's file aside."""
        own, others = (
            {layer.name: layer.values for layer in config._layers if layer.file != self.api_file}
            for config in (self, other)
        )
        return [name for name in {**own, **others} if own.get(name) != others.get(name)]

    @property
    def models(self) -> dict[str, type[Settings]]:
        """The model of each section."""
        return {name: type(settings) for name, settings in self._sections.items()}

    def differences(self, other: Config) -> list[KeyPath]:
        """The keys that have other values there, secrets among them."""
        return [
            path
            for name, settings in self._sections.items()
            for path in differing(tuple(name.split(".")), settings, other.sections[name])
        ]

    def effective(self) -> dict[str, Any]:
        """All active settings as plain data, in the shape of the files; secrets are masked."""
        tree: dict[str, Any] = {}
        for name in sorted(self._sections):
            *above, last = name.split(".")
            node = tree
            for part in above:
                node = node.setdefault(part, {})
            node.setdefault(last, {}).update(self._sections[name].model_dump(mode="json"))
        return tree

    def leaves(self) -> dict[str, Any]:
        """The same as ``effective`` by key: ``{"mqtt.max_qos": 2}``."""
        return dict(_leaves("", self.effective()))

    def with_sections(self, sections: Mapping[str, Settings]) -> Config:
        """The same but for the values of these sections."""
        return Config({**self._sections, **sections}, self._layers, self.objects, self.api_file)

    def describe(self) -> list[SettingEntry]:
        """Every setting there is, for a reference page."""
        return describe(self.models)


def differing(path: KeyPath, before: Any, after: Any) -> Iterator[KeyPath]:
    """The keys below a path that have other values in another settings model, secrets among them."""
    if before == after:
        return
    if not (isinstance(before, BaseModel) and type(before) is type(after)):
        yield path
        return
    for name in dict.fromkeys(
        (*type(before).model_fields, *(before.model_extra or {}), *(after.model_extra or {}))
    ):
        yield from differing((*path, name), getattr(before, name, None), getattr(after, name, None))


def _leaves(prefix: str, tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value


def load_config(
    models: Models,
    *,
    data_dir: Path | None,
    config_files: Sequence[Path] = (),
    environ: Mapping[str, str],
    overrides: Mapping[str, str] | None = None,
    api_values: Mapping[str, Any] | None = None,
) -> Config:
    """Read all layers and validate them; ``api_values`` replace the content of the API's file.

    Raises:
        ConfigError: with every problem found, one sentence each: file and line, key, value, what was expected.
    """
    layers, problems = _read_layers(data_dir, config_files, environ, overrides or {}, api_values)
    problems += removed_settings(layers)
    object_paths = [tuple(name.split(".")) for name in object_sections()]
    objects, object_problems = _objects(layers, object_paths)
    values = without_objects(merged(layers), object_paths)
    data, unknown = split(values, models, layers)
    sections, wrong = _validated(models, data, layers)
    problems += [*object_problems, *unknown, *wrong]
    if problems:
        raise ConfigError(problems)
    return Config(sections, layers, objects, None if data_dir is None else data_dir / API_FILE)


def _read_layers(
    data_dir: Path | None,
    config_files: Sequence[Path],
    environ: Mapping[str, str],
    overrides: Mapping[str, str],
    api_values: Mapping[str, Any] | None,
) -> tuple[list[Layer], list[str]]:
    own_files = [] if data_dir is None else [data_dir / BASE_FILE, data_dir / API_FILE]
    api_file = None if api_values is None else own_files[-1]
    files = [file for file in own_files if file == api_file or file.exists()]
    layers = []
    problems = []
    for file in [*files, *find_main_files(config_files, data_dir, environ)]:
        if api_values is not None and file == api_file:
            layers.append(Layer(str(file), dict(api_values), {}, file))
            continue
        try:
            layers.append(
                (api_layer(file) if file.name == API_FILE else None) or file_layer(file, environ)
            )
        except HoconError as error:
            problems.append(str(error))
    for layer, wrong in (environment_layer(environ), override_layer(overrides)):
        layers.append(layer)
        problems += wrong
    return layers, problems


def _objects(
    layers: Sequence[Layer], paths: Sequence[KeyPath]
) -> tuple[dict[str, list[LayerObjects]], list[str]]:
    by_section: dict[str, list[LayerObjects]] = {}
    problems = []
    for path in paths:
        in_files = []
        for layer in layers:
            layer_objects, wrong = objects_in(layer, path)
            problems += wrong
            if layer.file is not None:
                in_files.append(layer_objects)
            elif layer_objects.objects:
                key = ".".join(path)
                inside = (*path, layer_objects.objects[0]["name"])
                problems.append(
                    f"{layer.where(inside)}: {key} are objects; define them in files or through the API"
                )
        by_section[".".join(path)] = in_files
    return by_section, problems


def split(
    values: dict[str, Any], models: Models, layers: Sequence[Layer]
) -> tuple[dict[str, Any], list[str]]:
    """The values of each section by its name, and the keys that belong to none."""
    names = {tuple(name.split(".")): name for name in models}
    data: dict[str, Any] = {}
    problems: list[str] = []

    def descend(path: KeyPath, node: dict[str, Any]) -> None:
        below = {
            name[len(path)] for name in names if name[: len(path)] == path and len(name) > len(path)
        }
        own = {key: value for key, value in node.items() if key not in below}
        if path in names:
            data[names[path]] = own
        else:
            problems.extend(_unknown((*path, key), below, layers) for key in own)
        for key in sorted(below & node.keys()):
            inner = node[key]
            if isinstance(inner, dict):
                descend((*path, key), inner)
            elif (
                isinstance(inner, list)
                and models.get(".".join((*path, key)), Settings).takes_a_list
            ):
                data[".".join((*path, key))] = inner
            elif inner is not None:
                problems.append(
                    f"{_where(layers, (*path, key))}: {'.'.join((*path, key))} must be an object {{ ... }}"
                )

    descend((), values)
    return data, problems


def _unknown(path: KeyPath, known: Iterable[str], layers: Sequence[Layer]) -> str:
    return f"{_where(layers, path)}: {'.'.join(path)} is not a section of settings{hint(path[-1], known)}"


def _validated(
    models: Models, data: Mapping[str, Any], layers: Sequence[Layer]
) -> tuple[dict[str, Settings], list[str]]:
    sections = {}
    problems = []
    for name, model in models.items():
        try:
            sections[name] = model.model_validate(data.get(name, {}))
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                path = (*name.split("."), *(str(part) for part in detail["loc"]))
                problems.append(f"{_where(layers, path)}: {sentence(name, model, detail)}")
    return sections, problems


def _where(layers: Sequence[Layer], path: KeyPath) -> str:
    """The place of a key, else of the nearest key above it that is set."""
    for length in range(len(path), 0, -1):
        if (layer := setter(layers, path[:length])) is not None:
            return layer.where(path)
    return "defaults"


# Replacement of each removed key.
REMOVED: Final[Mapping[str, str]] = {
    "mqtt.session_expiry_limit": "mqtt.max_session_expiry",
    "lake.trigger": "commit_interval of each table",
}


def removed_settings(layers: Sequence[Layer]) -> list[str]:
    """A sentence for each place where one is set; they are taken out of the layers, so that no one complains twice."""
    return [
        f"{layer.where(path)}: {key} was removed. Try: {successor}"
        for key, successor in REMOVED.items()
        for path in [tuple(key.split("."))]
        for layer in layers
        if _take(layer.values, path)
    ]


def _take(values: Any, path: KeyPath) -> bool:
    for name in path[:-1]:
        values = values.get(name) if isinstance(values, dict) else None
    if not isinstance(values, dict) or path[-1] not in values:
        return False
    del values[path[-1]]
    return True
