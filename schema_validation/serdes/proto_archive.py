"""The files of a protobuf bundle from a gzipped tar, in memory and within bounds."""

from __future__ import annotations

import tarfile
import zlib
from io import BytesIO
from typing import Any

from schema_validation.serdes.base import SourceError, short
from schema_validation.serdes.proto_bundle import MAX_BUNDLE_BYTES, MAX_FILES, leaves_folder

_GZIP = b"\x1f\x8b"
# Bytes of a tar in addition to its files.
_HEADERS = MAX_FILES * 2048


def files_of_archive(data: bytes, root: str) -> list[dict[str, Any]]:
    """``[{"path", "root", "contents"}]`` of an archive.

    Args:
        data: the archive.
        root: the name of the root file, without a folder. It may be in any folder, once.

    Raises:
        SourceError: it is not a gzipped tar, too large, holds paths that leave it or links, or has no such root.
    """
    if "/" in root or leaves_folder(root):
        raise SourceError(f"the root file is a name without a folder, not {short(root)}")
    files = _read(_unpacked(data))
    roots = [path for path in files if path.rpartition("/")[2] == root]
    if root in files:
        roots = [root]
    if len(roots) != 1:
        raise SourceError(f"the bundle has {len(roots)} files {short(root)}; expected one")
    return [
        {"path": path, "root": path == roots[0], "contents": text} for path, text in files.items()
    ]


def _unpacked(data: bytes) -> bytes:
    if not data.startswith(_GZIP):
        raise SourceError("the bundle is not a gzipped tar")
    unpacking = zlib.decompressobj(wbits=31)
    try:
        plain = unpacking.decompress(data, MAX_BUNDLE_BYTES + _HEADERS)
    except zlib.error as error:
        raise SourceError(f"the bundle is not a gzipped tar: {error}") from None
    if unpacking.unconsumed_tail:
        raise SourceError(f"a bundle has at most {MAX_BUNDLE_BYTES} bytes unpacked")
    return plain


def _read(plain: bytes) -> dict[str, str]:
    files: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=BytesIO(plain), mode="r:") as archive:
            for member in archive:
                if member.isdir():
                    continue
                path, text = _file(archive, member)
                if path in files:
                    raise SourceError(f"the file {path!r} is there twice")
                files[path] = text
                if len(files) > MAX_FILES:
                    raise SourceError(f"a bundle has at most {MAX_FILES} files")
    except (tarfile.TarError, EOFError, UnicodeError, OverflowError, ValueError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"the bundle is not a gzipped tar: {error}") from None
    return files


def _file(archive: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[str, str]:
    path = member.name.removeprefix("./")
    if leaves_folder(path):
        raise SourceError(f"the path {short(member.name)} must stay in the bundle")
    file = archive.extractfile(member) if member.isreg() and not member.issparse() else None
    if file is None:
        raise SourceError(f"{short(path)} is not a regular file")
    try:
        return path, file.read().decode()
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: byte {error.start} is not UTF-8") from None
