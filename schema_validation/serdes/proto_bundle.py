"""The files of a protobuf schema to one descriptor pool of their own.

Imports resolve against the folder of the root file, also for files in sub-folders. A path that leaves the folder
refuses the bundle; so does an import that is not in it, unless it is one of protobuf's own well-known files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from google.protobuf import descriptor_pool

from schema_validation.serdes.base import SourceError, short
from schema_validation.serdes.proto_parser import parse_file

MAX_BUNDLE_BYTES = 10 * 1024 * 1024
MAX_FILES = 1000
_WELL_KNOWN = frozenset(
    f"google/protobuf/{name}.proto"
    for name in ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers", "descriptor")
)


class Bundle:
    """A pool with all files, and the descriptor of the root and of each file, by path below the root's folder."""

    def __init__(self, root: str, files: Mapping[str, str]) -> None:
        self._sources = files
        self._pool = descriptor_pool.DescriptorPool()
        self._loaded: dict[str, Any] = {}
        self.root = self._load(root, ())
        self.files: Sequence[Any] = tuple(self._loaded.values())

    def _load(self, path: str, importing: tuple[str, ...]) -> Any:
        if path in importing:
            raise SourceError(f"the files import each other in a circle: {' → '.join((*importing, path))}")
        if path in self._loaded:
            return self._loaded[path]
        if path in _WELL_KNOWN and path not in self._sources:
            return self._well_known(path)
        if len(importing) > 100:
            raise SourceError("imports nest deeper than 100 files")
        parsed = parse_file(self._sources[path], path)
        missing = [name for name in parsed.dependency if name not in self._sources and name not in _WELL_KNOWN]
        if missing:
            invalid = [name for name in missing if leaves_folder(name)]
            detail = f"; leaving the folder: {', '.join(invalid)}" if invalid else ""
            raise SourceError(f"{path}: imports that are not there: {', '.join(missing)}{detail}")
        for name in parsed.dependency:
            self._load(name, (*importing, path))
        self._loaded[path] = self._added(parsed, path)
        return self._loaded[path]

    def _well_known(self, path: str) -> Any:
        module = import_module("google.protobuf." + path.rpartition("/")[2].removesuffix(".proto") + "_pb2")
        self._pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        self._loaded[path] = self._pool.FindFileByName(path)
        return self._loaded[path]

    def _added(self, parsed: Any, path: str) -> Any:
        try:
            self._pool.AddSerializedFile(parsed.SerializeToString())
            return self._pool.FindFileByName(path)
        except (TypeError, KeyError, ValueError) as error:
            raise SourceError(f"{path}: {_why(error)}") from None


def load_text(source: str) -> Bundle:
    """The bundle of a single text, which imports nothing but well-known files. Raises ``SourceError``."""
    return Bundle("schema.proto", {"schema.proto": source})


def load_files(files: Any) -> Bundle:
    """The bundle of ``[{"path", "root", "contents"}]``.

    Raises:
        SourceError: not exactly one root, a bad path, a missing import, a file that does not parse.
    """
    if not isinstance(files, list) or not files:
        raise SourceError("files are a list of objects with path, root and contents")
    if len(files) > MAX_FILES:
        raise SourceError(f"a bundle has at most {MAX_FILES} files")
    contents: dict[str, str] = {}
    roots: list[str] = []
    for index, item in enumerate(files):
        path = _path_of(item, index)
        if path in contents:
            raise SourceError(f"the file {path!r} is there twice")
        contents[path] = item["contents"]
        if item.get("root", False) is True:
            roots.append(path)
    if len(roots) != 1:
        raise SourceError(f"exactly one file must be the root, not {len(roots)}")
    if sum(map(len, contents.values())) > MAX_BUNDLE_BYTES:
        raise SourceError(f"a bundle has at most {MAX_BUNDLE_BYTES} bytes")
    folder = roots[0].rpartition("/")[0]
    below = {_below(path, folder): text for path, text in contents.items()}
    return Bundle(_below(roots[0], folder), below)


def _path_of(item: Any, index: int) -> str:
    if not isinstance(item, dict) or not isinstance(item.get("path"), str) or not isinstance(item.get("contents"), str):
        raise SourceError(f"file {index + 1}: an object with path and contents is wanted")
    path: str = item["path"]
    if leaves_folder(path):
        raise SourceError(f"file {index + 1}: the path {short(path)} must stay in the bundle")
    return path


def leaves_folder(path: str) -> bool:
    """Whether a path is absolute, climbs with ``..``, or is no plain path."""
    parts = path.split("/")
    return not path or path.startswith("/") or ".." in parts or "" in parts or "\\" in path or ":" in path


def _below(path: str, folder: str) -> str:
    return path[len(folder) + 1 :] if folder and path.startswith(f"{folder}/") else path


def _why(error: Exception) -> str:
    text = str(error)
    for start in ("Couldn't build proto file into descriptor pool: ", "Couldn't build file into descriptor pool: "):
        text = text.removeprefix(start)
    return text.replace("duplicate file", "the file is there twice").strip("'\" ")
