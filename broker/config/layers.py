"""The layers of configuration, from weakest to strongest, and who set what.

defaults < ``DIR/base.hocon`` < ``DIR/api.hocon`` (written by the API) < ``sluice.conf`` < ``conf.d/*.conf`` by name <
environment < command line. Files that ``--config`` or ``SLUICE_CONFIG`` name stand for ``sluice.conf`` and ``conf.d``.

A setting in the environment is ``SLUICE_`` and its key in capitals, levels separated by two underscores:
``SLUICE_MQTT__MAX_PACKET_SIZE=1MB``. Variables without two underscores are not settings (``SLUICE_CONFIG``,
``SLUICE_API_TOKEN``, and what container platforms put there, such as ``SLUICE_SERVICE_HOST``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.config.allowed import SECRET_PREFIX
from broker.config.assignments import KeyPath, read_lines
from broker.config.file_names import MAIN_DIRECTORY, MAIN_FILE
from broker.config.hocon import parse_file, parse_value
from broker.config.hocon_reader import HoconError

ENVIRONMENT_PREFIX = "SLUICE_"
CONFIG_VARIABLE = "SLUICE_CONFIG"

# Other names of sections in files, for configurations that were written for another broker.
ALIASES: Mapping[str, str] = {"message_validation": "schema_validation"}


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings of one source. ``written`` has the place of each key, by its path; ``name`` is for the others.
    ``is_lines`` says that it is a file to which changes may be added as lines (``broker.config.assignments``);
    ``cut_off`` is a last line without its end, which does not count."""

    name: str
    values: dict[str, Any]
    written: Mapping[KeyPath, str] = field(default_factory=dict)
    file: Path | None = None
    is_lines: bool = False
    cut_off: str = ""

    def where(self, path: KeyPath) -> str:
        """The place of a key, or of the nearest key above it."""
        for length in range(len(path), 0, -1):
            if place := self.written.get(path[:length]):
                return place
        return self.name


def find_main_files(
    config_files: Sequence[Path], data_dir: Path | None, environ: Mapping[str, str]
) -> list[Path]:
    """The main files, weakest first: as given, else as ``SLUICE_CONFIG`` says, else ``sluice.conf`` and ``conf.d`` of
    the data directory where they exist. A directory stands for its files ``*.conf``, by name."""
    named = list(config_files)
    if not named and (text := environ.get(CONFIG_VARIABLE)):
        named = [Path(part) for part in text.split(os.pathsep) if part]
    if not named and data_dir is not None:
        named = [
            path for path in (data_dir / MAIN_FILE, data_dir / MAIN_DIRECTORY) if path.exists()
        ]
    return [
        file
        for path in named
        for file in (sorted(path.glob("*.conf")) if path.is_dir() else [path])
    ]


def file_layer(file: Path, environ: Mapping[str, str]) -> Layer:
    """The layer of a HOCON file.

    Raises:
        HoconError: it cannot be read.
    """
    document = parse_file(file, environ)
    places = {_renamed(path): str(place) for path, place in document.places.items()}
    values: dict[str, Any] = {}
    for root, value in document.values.items():
        name = ALIASES.get(root, root)
        if name in values:
            raise HoconError(
                f"{places.get((name,), file)}: {root} and {name} are one section; keep one of the two"
            )
        values[name] = value
    return Layer(str(file), values, places, file)


def api_layer(file: Path) -> Layer | None:
    """The layer of ``DIR/api.hocon``, of any length; None where it is not as the API writes it."""
    try:
        text = file.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None
    lines = read_lines(text, str(file))
    cut_off = text.rpartition("\n")[2]
    return None if lines is None else Layer(str(file), *lines, file, not cut_off, cut_off)


def _renamed(path: KeyPath) -> KeyPath:
    return (ALIASES.get(path[0], path[0]), *path[1:])


def environment_layer(environ: Mapping[str, str]) -> tuple[Layer, list[str]]:
    """The layer of the environment, and its problems."""
    settings = {
        tuple(name[len(ENVIRONMENT_PREFIX) :].lower().split("__")): (name, text)
        for name, text in sorted(environ.items())
        if name.startswith(ENVIRONMENT_PREFIX)
        and not name.startswith(SECRET_PREFIX)
        and "__" in name[len(ENVIRONMENT_PREFIX) :]
    }
    return _text_layer(
        "environment", ((path, f"environment variable {n}", t) for path, (n, t) in settings.items())
    )


def override_layer(overrides: Mapping[str, str]) -> tuple[Layer, list[str]]:
    """The layer of ``key=value`` settings from the command line, and its problems."""
    return _text_layer(
        "command line", ((tuple(key.split(".")), "command line", t) for key, t in overrides.items())
    )


def _text_layer(name: str, settings: Iterable[tuple[KeyPath, str, str]]) -> tuple[Layer, list[str]]:
    values: dict[str, Any] = {}
    written: dict[KeyPath, str] = {}
    problems = []
    for path, source, text in settings:
        written[path] = source
        try:
            _put(values, path, _value_of(text, source))
        except HoconError as error:
            problems.append(str(error))
        except KeyError:
            problems.append(
                f"{source}: {'.'.join(path)} is set as a value and as an object; keep one of the two"
            )
    return Layer(name, values, written), problems


def _value_of(text: str, source: str) -> Any:
    """Lists and objects are written in HOCON; anything else is left as text, for the setting's type to read."""
    return parse_value(text, source) if text.lstrip()[:1] in ("[", "{") else text


def _put(values: dict[str, Any], path: KeyPath, value: Any) -> None:
    for key in path[:-1]:
        values = values.setdefault(key, {})
        if not isinstance(values, dict):
            raise KeyError(key)
    if path[-1] in values:
        raise KeyError(path[-1])
    values[path[-1]] = value


def merged(layers: Sequence[Layer]) -> dict[str, Any]:
    """All layers in one tree: objects merge key by key, anything else is replaced by the stronger layer."""
    result: dict[str, Any] = {}
    for layer in layers:
        result = _over(result, layer.values)
    return result


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        earlier = result.get(key)
        result[key] = (
            _over(earlier, value)
            if isinstance(earlier, dict) and isinstance(value, dict)
            else value
        )
    return result


def setter(layers: Sequence[Layer], path: KeyPath) -> Layer | None:
    """The strongest layer that sets a key, None where all leave it at its default."""
    return next((layer for layer in reversed(layers) if _sets(layer.values, path)), None)


def _sets(values: Any, path: KeyPath) -> bool:
    for key in path:
        if isinstance(values, list) and key.isdigit() and int(key) < len(values):
            values = values[int(key)]
        elif isinstance(values, dict) and key in values:
            values = values[key]
        else:
            return False
    return True
