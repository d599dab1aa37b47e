"""The files of a protobuf schema to one descriptor pool of their own. A schema may also come compiled, in base64:
``protoc --include_imports --descriptor_set_out=... file.proto``.

Imports resolve against the folder of the root file, also for files in other folders, or else against a folder above it:
protoc, buf and Confluent's registry import ``acme/v1/pos.proto`` by its path from the top, wherever the top is in the
bundle. There may be several tops, as ``third_party``: a file elsewhere is taken where it is the only one with such a
path. A path that leaves the bundle refuses it; so does an import that is not in it, unless it is one of protobuf's
own well-known files. Files of a compiled schema import each other by their whole names.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from schema_validation.serdes.base import MAX_SOURCE_BYTES, SourceError, short
from schema_validation.serdes.proto_parser import parse_file

MAX_BUNDLE_BYTES = 10 * 1024 * 1024
MAX_FILES = 1000
WELL_KNOWN = frozenset(
    f"google/protobuf/{name}.proto"
    for name in (
        "any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct", "timestamp", "type",
        "wrappers",
    )
)  # fmt: skip
_MAX_IMPORTING = 100
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_NAME = re.compile(r"[\w./+-]+", re.ASCII)


class Bundle:
    """A pool with all files, by path in the bundle, and the descriptor of the root and of each file."""

    def __init__(self, root: str, files: Mapping[str, Any]) -> None:
        """Load files, each as text or as a ``FileDescriptorProto``. Raises ``SourceError``."""
        self._sources = files
        self._folders = _folders_above(root) if isinstance(files[root], str) else [""]
        self._parsed: dict[str, Any] = {}
        self._pool = descriptor_pool.DescriptorPool()
        self._loaded: dict[str, Any] = {}
        self._parse(root)
        self.root = self._load(root, ())
        self.files: Sequence[Any] = tuple(self._loaded.values())

    def _parse(self, root: str) -> None:
        """Parse the root and all that it imports, by whatever way."""
        waiting = [root]
        missing = dict[str, None]()
        while waiting:
            path = waiting.pop()
            if path in self._parsed:
                continue
            source = self._sources[path] if path in self._sources else _well_known(path)
            self._parsed[path] = proto = _read(source, path) if isinstance(source, str) else source
            for position, name in enumerate(proto.dependency):
                imported = self._imported(name)
                if imported is None:
                    missing[name] = None
                else:
                    proto.dependency[position] = imported
                    waiting.append(imported)
        if missing:
            raise MissingImportsError(list(missing))

    def _imported(self, name: str) -> str | None:
        """The path of a file that is imported by a name; None if it is missing or leaves the bundle."""
        if leaves_folder(name):
            return None
        paths = [path for folder in self._folders if (path := folder + name) in self._sources]
        if paths or name in WELL_KNOWN:
            return paths[0] if paths else name
        elsewhere = [path for path in self._sources if path.endswith(f"/{name}")]
        return elsewhere[0] if len(elsewhere) == 1 else None

    def _load(self, path: str, importing: tuple[str, ...]) -> Any:
        if path in importing:
            raise SourceError(
                f"the files import each other in a circle: {' → '.join((*importing, path))}"
            )
        if path not in self._loaded:
            if len(importing) > _MAX_IMPORTING:
                raise SourceError(f"imports nest deeper than {_MAX_IMPORTING} files")
            for name in self._parsed[path].dependency:
                self._load(name, (*importing, path))
            self._loaded[path] = self._added(self._parsed[path], path)
        return self._loaded[path]

    def _added(self, parsed: Any, path: str) -> Any:
        try:
            self._pool.AddSerializedFile(parsed.SerializeToString())
            return self._pool.FindFileByName(path)
        except (TypeError, KeyError, ValueError) as error:
            raise SourceError(f"{path}: {_why(error)}") from None


def _read(source: str, path: str) -> Any:
    """The descriptor of a file: of its text, or of its compiled form."""
    compiled = _compiled_files(source)
    if compiled is None:
        return parse_file(source, path)
    proto = FileDescriptorProto()
    proto.CopyFrom(compiled[-1])
    proto.name = path
    return proto


class MissingImportsError(SourceError):
    """Imports that are not there; ``invalid`` are those that leave the bundle."""

    def __init__(self, names: Sequence[str]) -> None:
        self.invalid = [name for name in names if leaves_folder(name)]
        self.missing = [name for name in names if name not in self.invalid]
        parts = ("missing", self.missing), ("invalid, since they leave the folder", self.invalid)
        lists = "; ".join(f"{label}: {', '.join(names[:20])}" for label, names in parts if names)
        super().__init__(f"imports that are not there; {lists}")


def _well_known(path: str) -> Any:
    module = import_module(
        "google.protobuf." + path.rpartition("/")[2].removesuffix(".proto") + "_pb2"
    )
    return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def load_text(source: str) -> Bundle:
    """The bundle of a single source. Raises ``SourceError``.

    A string imports nothing but well-known files; the base64 of a ``FileDescriptorSet`` holds what it imports, and its
    last file is the root.
    """
    if len(source) > MAX_SOURCE_BYTES:
        raise SourceError(f"a schema has at most {MAX_SOURCE_BYTES} bytes")
    compiled = _compiled_files(source)
    if compiled is None:
        return Bundle("schema.proto", {"schema.proto": source})
    return Bundle(compiled[-1].name, {file.name: file for file in compiled})


def load_files(files: Any) -> Bundle:
    """The bundle of ``[{"path", "root", "contents"}]``.

    Raises:
        SourceError: not exactly one root, a bad path, a missing import, a file that does not parse.
    """
    if not isinstance(files, list) or not files:
        raise SourceError("expected a list of objects with path, root and contents")
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
    return Bundle(roots[0], contents)


def _path_of(item: Any, index: int) -> str:
    if (
        not isinstance(item, dict)
        or not isinstance(item.get("path"), str)
        or not isinstance(item.get("contents"), str)
    ):
        raise SourceError(f"file {index + 1}: expected an object with path and contents")
    path: str = item["path"]
    if leaves_folder(path):
        raise SourceError(f"file {index + 1}: the path {short(path)} must stay in the bundle")
    return path


def leaves_folder(path: str) -> bool:
    """True if a path is absolute, climbs with ``..``, or is not a plain path."""
    parts = path.split("/")
    return (
        not path
        or path.startswith("/")
        or ".." in parts
        or "" in parts
        or "\\" in path
        or ":" in path
    )


def _folders_above(path: str) -> list[str]:
    """The folder of a file and those above it, nearest first; the last is the top, ``""``."""
    return [path[: at + 1] for at in range(len(path) - 1, -1, -1) if path[at] == "/"] + [""]


def _why(error: Exception) -> str:
    text = str(error)
    for start in (
        "Couldn't build proto file into descriptor pool: ",
        "Couldn't build file into descriptor pool: ",
    ):
        text = text.removeprefix(start)
    return text.replace("duplicate file", "the file is there twice").strip("'\" ")


def _compiled_files(source: str) -> Sequence[Any] | None:
    """The files of a ``FileDescriptorSet``, or the one that is a ``FileDescriptorProto`` (as Confluent's clients send).

    None where the source is neither: text of a ``.proto`` file has braces and semicolons, base64 has none.
    """
    if not _BASE64.fullmatch(source):
        return None
    try:
        data = base64.b64decode("".join(source.split()), validate=True)
    except binascii.Error:
        return None
    return _set(data) or _single(data)


def _set(data: bytes) -> Sequence[Any] | None:
    try:
        files = FileDescriptorSet.FromString(data).file
    except DecodeError:
        return None
    return list(files) if files and all(_NAME.fullmatch(file.name) for file in files) else None


def _single(data: bytes) -> Sequence[Any] | None:
    try:
        file = FileDescriptorProto.FromString(data)
    except DecodeError:
        return None
    return (
        [file]
        if _NAME.fullmatch(file.name or "-") and (file.message_type or file.enum_type)
        else None
    )
