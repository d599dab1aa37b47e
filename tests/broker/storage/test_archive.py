"""The file of a backup: written as a stream, read within bounds, and refused where it is not whole."""

from __future__ import annotations

import json
import secrets
import zipfile
import zlib
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from broker.storage.archive import (
    FORMAT,
    FORMAT_OF_CELLS,
    PART_BYTES,
    Archive,
    ArchiveWriter,
    BackupUnusable,
    Manifest,
    Part,
)

KEY = "a long passphrase"


def written(file: Path, key: str | None, **changes: Any) -> Path:
    """A backup with two files and a piece of the store."""
    archive = ArchiveWriter(key)
    with file.open("wb") as opened:
        opened.write(archive.part("file", b"a.b = 1\n" * 1000, "api.hocon"))
        opened.write(archive.part("file", b"", "conf.d/empty.conf"))
        opened.write(archive.part("store", secrets.token_bytes(PART_BYTES)))
        manifest = Manifest(
            format=FORMAT, id=archive.id, version="0.2.0", node="n", made_at="now", messages=False,
            salt=archive.salt, holds={}, left_out=[], missing_secrets=[], parts=archive.parts,
        )  # fmt: skip
        for name, value in changes.items():
            setattr(manifest, name, value)
        opened.write(archive.end(manifest))
    return file


def read(file: Path, key: str | None) -> list[tuple[Part, bytes]]:
    with Archive(file, key) as archive:
        return list(archive.data())


@pytest.mark.parametrize("key", [None, KEY])
def test_what_is_written_is_read_again(tmp_path: Path, key: str | None) -> None:
    first, empty, store = read(written(tmp_path / "b", key), key)
    assert (first[0].path, first[1]) == ("api.hocon", b"a.b = 1\n" * 1000)
    assert (empty[0].path, empty[1]) == ("conf.d/empty.conf", b"")
    assert (store[0].content, len(store[1])) == ("store", PART_BYTES)
    assert (b"a.b = 1" in (tmp_path / "b").read_bytes()) is False


def test_a_key_is_needed_where_there_is_one_and_only_there(tmp_path: Path) -> None:
    locked = written(tmp_path / "locked", KEY)
    with pytest.raises(BackupUnusable, match=r"is encrypted\. Try: --key-file"):
        Archive(locked, None)
    with pytest.raises(BackupUnusable, match="got another"):
        Archive(locked, "another passphrase")
    with pytest.raises(BackupUnusable, match="got one without key"):
        Archive(written(tmp_path / "open", None), KEY)


@pytest.mark.parametrize("key", [None, KEY])
def test_each_byte_counts(tmp_path: Path, key: str | None) -> None:
    """A backup that is cut off, or in which a byte has changed, is refused or reads as it was."""
    whole = written(tmp_path / "whole", key).read_bytes()
    expected = read(tmp_path / "whole", key)
    bad = tmp_path / "bad"
    ends = range(len(whole) - 900, len(whole), 53)
    places = [*range(0, 200, 21), *range(0, len(whole), len(whole) // 10), *ends]
    refused = []
    for place in places:
        bad.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            assert read(bad, key) == expected
        except BackupUnusable as error:
            refused.append(str(error))
    assert [text for text in refused if str(bad) not in text or "\n" in text] == []
    assert len(refused) > len(places) // 2
    for length in (0, 1, 30, len(whole) // 2, len(whole) - 1):
        bad.write_bytes(whole[:length])
        with pytest.raises(BackupUnusable):
            read(bad, key)


def test_a_newer_format_is_refused_whatever_else_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "newer"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("manifest.json", json.dumps({"format": FORMAT_OF_CELLS + 1, "other": 1}))
    with pytest.raises(BackupUnusable, match="written by a newer release"):
        Archive(file, None)


def _bomb(archive: zipfile.ZipFile, manifest: dict[str, Any]) -> None:
    data = zlib.compress(bytes(256 * 1024 * 1024), 9)
    _entry(archive, manifest, data)


def _entry(archive: zipfile.ZipFile, manifest: dict[str, Any], data: bytes, **part: Any) -> None:
    digest = sha256(data).hexdigest()
    manifest["parts"] = [
        {"name": "parts/0", "content": "store", "bytes": 10, "sha256": digest, "path": ""} | part
    ]
    archive.writestr("parts/0", data)


def _compressed(archive: zipfile.ZipFile, manifest: dict[str, Any]) -> None:
    manifest["parts"] = [
        {"name": "parts/0", "content": "store", "bytes": 1, "sha256": "", "path": ""}
    ]
    archive.writestr("parts/0", bytes(1024), zipfile.ZIP_DEFLATED)


def _too_long(archive: zipfile.ZipFile, manifest: dict[str, Any]) -> None:
    _entry(archive, manifest, b"", bytes=2**40)


def _unknown_entry(archive: zipfile.ZipFile, manifest: dict[str, Any]) -> None:
    archive.writestr("../../etc/passwd", "root")


def _missing(archive: zipfile.ZipFile, manifest: dict[str, Any]) -> None:
    manifest["parts"] = [
        {"name": "parts/0", "content": "store", "bytes": 1, "sha256": "", "path": ""}
    ]


def _wrong_type(archive: zipfile.ZipFile, manifest: dict[str, Any]) -> None:
    manifest["parts"] = [{"name": 5}]


def _bad_salt(archive: zipfile.ZipFile, manifest: dict[str, Any]) -> None:
    manifest["salt"] = "no hexadecimal"
    archive.writestr("seal", b"x" * 40)


@pytest.mark.parametrize(
    "spoil", [_bomb, _compressed, _too_long, _unknown_entry, _missing, _wrong_type, _bad_salt]
)
def test_a_hostile_file_is_refused_in_one_sentence(
    tmp_path: Path, spoil: Callable[[zipfile.ZipFile, dict[str, Any]], None]
) -> None:
    manifest: dict[str, Any] = {
        "format": FORMAT, "id": "i", "version": "0.2.0", "node": "n", "made_at": "now", "messages": False,
        "salt": "", "holds": {}, "left_out": [], "missing_secrets": [], "parts": [],
    }  # fmt: skip
    file = tmp_path / "hostile"
    with zipfile.ZipFile(file, "w") as archive:
        spoil(archive, manifest)
        archive.writestr("manifest.json", json.dumps(manifest))
    with pytest.raises(BackupUnusable) as caught:
        read(file, KEY if manifest["salt"] else None)
    assert "\n" not in str(caught.value)


def test_a_directory_of_many_entries_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "many"
    end = b"PK\x05\x06" + bytes(8) + (2**31).to_bytes(4, "little") + bytes(6)
    file.write_bytes(bytes(1000) + end)
    with pytest.raises(BackupUnusable, match="directory is too long"):
        Archive(file, None)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a backup")
    (tmp_path / "zip").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("a", "b")
    for name in ("text", "zip", "missing", "."):
        with pytest.raises(BackupUnusable):
            Archive(tmp_path / name, None)
