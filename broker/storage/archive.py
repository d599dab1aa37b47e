"""The file of a backup: a ZIP of numbered parts and a manifest, written as a stream and read within memory bounds.

Parts are compressed one by one and stored. With a passphrase each is encrypted by AES-256-GCM with its name, and the
manifest is sealed with the same key, which scrypt derives. The manifest, which is in clear, is the last entry:

::

    parts/000000     a piece of a file, or of the store
    seal             the authentication of the manifest; only with a passphrase
    manifest.json    ``Manifest``
"""

from __future__ import annotations

import hashlib
import secrets
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Final, Literal, Self, cast

import msgspec

from broker.core.errors import SluiceError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FORMAT: Final = 1
# That of a broker of several cells, which earlier releases would restore the first cell of.
FORMAT_OF_CELLS: Final = 2
# Size of a part before compression, in bytes.
PART_BYTES: Final = 4 * 1024 * 1024
# Bytes that compression and encryption may add to it.
_SPARE_BYTES: Final = 64 * 1024
_MAX_MANIFEST_BYTES: Final = 64 * 1024 * 1024
# Size of the ZIP's own directory: some 500,000 parts, or 2 TB.
_MAX_DIRECTORY_BYTES: Final = 64 * 1024 * 1024
_MANIFEST: Final = "manifest.json"
_SEAL: Final = "seal"
_NONCE_BYTES: Final = 12
# Longest key and value of a store, in bytes, and the bytes before them.
_MAX_KEY_BYTES: Final = 1024 * 1024
_MAX_VALUE_BYTES: Final = 1024 * 1024 * 1024
_LENGTHS: Final = 8
# Cost of scrypt: 32 MiB, a tenth of a second.
_SCRYPT: Final = {"n": 2**15, "r": 8, "p": 1, "maxmem": 64 * 1024 * 1024, "dklen": 32}


class BackupUnusable(SluiceError):
    """A file that is not a backup, is damaged or newer, or needs another passphrase."""

    code = "backup_unusable"


class Part(msgspec.Struct, forbid_unknown_fields=True):
    """A part: a piece of the store of a cell, or of the file at ``path``. ``bytes`` is its size before compression."""

    name: str
    content: Literal["file", "store"]
    bytes: int
    sha256: str
    path: str = ""
    cell: int = 0


class MissingSecret(msgspec.Struct, forbid_unknown_fields=True):
    """A secret whose value is not in the backup."""

    name: str
    description: str = ""


class Manifest(msgspec.Struct, kw_only=True):
    """Description of a backup. ``holds`` counts its contents, ``left_out`` are sentences. ``salt`` is that of the key,
    in hexadecimal; without it nothing is encrypted."""

    format: int
    id: str
    version: str
    node: str
    made_at: str
    messages: bool
    salt: str = ""
    holds: dict[str, int]
    left_out: list[str]
    missing_secrets: list[MissingSecret]
    parts: list[Part]
    cells: int = 1


class _Form(msgspec.Struct):
    format: int


class _Sink:
    """The end of a ZIP file that is taken piece by piece."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing waits."""

    def take(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data


class ArchiveWriter:
    """Makes the bytes of a backup. Blocking: a part takes some tens of milliseconds."""

    def __init__(self, passphrase: str | None) -> None:
        self.id = secrets.token_hex(16)
        self.salt = "" if passphrase is None else secrets.token_hex(16)
        self.parts: list[Part] = []
        self._cipher = None if passphrase is None else _cipher(passphrase, self.salt)
        self._sink = _Sink()
        self._zip = zipfile.ZipFile(cast("IO[bytes]", self._sink), "w", zipfile.ZIP_STORED)

    def part(
        self, content: Literal["file", "store"], data: bytes, path: str = "", cell: int = 0
    ) -> bytes:
        """The bytes of a part of at most ``PART_BYTES``."""
        name = f"parts/{len(self.parts):06}"
        stored = self._sealed(name, zlib.compress(data, 1))
        digest = hashlib.sha256(stored).hexdigest()
        self.parts.append(Part(name, content, len(data), digest, path, cell))
        self._zip.writestr(name, stored)
        return self._sink.take()

    def end(self, manifest: Manifest) -> bytes:
        """The last bytes."""
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        if self._cipher is not None:
            nonce = secrets.token_bytes(_NONCE_BYTES)
            self._zip.writestr(_SEAL, nonce + self._cipher.encrypt(nonce, b"", text))
        self._zip.writestr(_MANIFEST, text)
        self._zip.close()
        return self._sink.take()

    def _sealed(self, name: str, data: bytes) -> bytes:
        if self._cipher is None:
            return data
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data, _place(self.id, name))


class Archive:
    """A backup to read.

    Raises (all calls):
        BackupUnusable: it is damaged, newer, no backup, or not encrypted with this passphrase.
    """

    def __init__(self, file: Path, passphrase: str | None) -> None:
        self._file = file
        self._passphrase = passphrase
        self._cipher: AESGCM | None = None
        try:
            self._zip = self._opened()
        except OSError as error:
            raise BackupUnusable(
                f"{file} cannot be read ({(error.strerror or str(error)).lower()})"
            ) from error
        try:
            self.manifest = self._read_manifest()
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._zip.close()

    def data(self) -> Iterator[tuple[Part, bytes]]:
        """The parts in their order, each checked."""
        entries = {entry.filename: entry for entry in self._zip.infolist()}
        for part in self.manifest.parts:
            with self._reporting():
                stored = self._zip.read(entries[part.name])
                if hashlib.sha256(stored).hexdigest() != part.sha256:
                    raise ValueError(f"{part.name} does not have its checksum")
                unpacking = zlib.decompressobj()
                data = unpacking.decompress(self._opened_part(part.name, stored), PART_BYTES + 1)
                if not unpacking.eof or len(data) != part.bytes:
                    raise ValueError(f"{part.name} does not have its size")
            yield part, data

    def _opened(self) -> zipfile.ZipFile:
        if not self._file.is_file():
            raise BackupUnusable(f"{self._file}: expected a backup, got no file")
        with self._file.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(max(0, size - _TAIL_BYTES))
            tail = opened.read()
        if _directory_bytes(tail) > _MAX_DIRECTORY_BYTES:
            raise self._damaged("its directory is too long")
        with self._reporting():
            return zipfile.ZipFile(self._file)

    def _read_manifest(self) -> Manifest:
        entries = {entry.filename: entry for entry in self._zip.infolist()}
        with self._reporting():
            text = self._entry(entries, _MANIFEST, _MAX_MANIFEST_BYTES)
            form = msgspec.json.decode(text, type=_Form)
        if form.format > FORMAT_OF_CELLS:
            raise BackupUnusable(
                f"{self._file} has format {form.format}, written by a newer release; this one reads up to format "
                f"{FORMAT_OF_CELLS}. Try: install the newer release"
            )
        with self._reporting():
            manifest = msgspec.json.decode(text, type=Manifest)
            expected = {part.name: part for part in manifest.parts}
            others = {_MANIFEST, _SEAL} if manifest.salt else {_MANIFEST}
            if len(expected) != len(manifest.parts) or len(entries) != len(self._zip.infolist()):
                raise ValueError("it has an entry twice")
            if entries.keys() != expected.keys() | others:
                raise ValueError("its entries are not those of its manifest")
            for name, part in expected.items():
                is_stored = entries[name].compress_type == zipfile.ZIP_STORED
                if not is_stored or not 0 <= part.bytes <= PART_BYTES:
                    raise ValueError(f"{name} is too long")
                if entries[name].file_size > PART_BYTES + _SPARE_BYTES:
                    raise ValueError(f"{name} is too long")
        if manifest.salt:
            self._unlock(manifest, text, entries)
        elif self._passphrase is not None:
            raise BackupUnusable(f"{self._file}: expected an encrypted backup, got one without key")
        return manifest

    def _unlock(self, manifest: Manifest, text: bytes, entries: dict[str, zipfile.ZipInfo]) -> None:
        from cryptography.exceptions import InvalidTag

        if self._passphrase is None:
            raise BackupUnusable(f"{self._file} is encrypted. Try: --key-file FILE")
        with self._reporting():
            seal = self._entry(entries, _SEAL, _SPARE_BYTES)
            self._cipher = _cipher(self._passphrase, manifest.salt)
        try:
            self._cipher.decrypt(seal[:_NONCE_BYTES], seal[_NONCE_BYTES:], text)
        except (InvalidTag, ValueError):
            raise BackupUnusable(
                f"{self._file}: expected the key that encrypted it, got another, or its manifest was changed"
            ) from None

    def _entry(self, entries: dict[str, zipfile.ZipInfo], name: str, most_bytes: int) -> bytes:
        entry = entries.get(name)
        if entry is None:
            raise ValueError(f"{name} is missing")
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > most_bytes:
            raise ValueError(f"{name} is too long")
        return self._zip.read(entry)

    def _opened_part(self, name: str, stored: bytes) -> bytes:
        if self._cipher is None:
            return stored
        place = _place(self.manifest.id, name)
        return self._cipher.decrypt(stored[:_NONCE_BYTES], stored[_NONCE_BYTES:], place)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report damage of any kind in one sentence: readers of ZIP raise errors of many."""
        try:
            yield
        except SluiceError:
            raise
        except Exception as error:
            raise self._damaged(str(error) or type(error).__name__) from error

    def _damaged(self, reason: str) -> BackupUnusable:
        return BackupUnusable(f"{self._file} is damaged, or not a backup: {reason}")


# The ends of a ZIP file without a comment: of one below 4 GiB, of a longer one, and its locator.
_END_BYTES: Final = 22
_LONG_END_BYTES: Final = 56
_LOCATOR_BYTES: Final = 20
_TAIL_BYTES: Final = _END_BYTES + _LOCATOR_BYTES + _LONG_END_BYTES


def _directory_bytes(tail: bytes) -> int:
    """Size of a ZIP's directory by its end; 0 where it has another end, which is refused later."""
    end = tail[-_END_BYTES:]
    if not end.startswith(b"PK\x05\x06"):
        return 0
    size = int.from_bytes(end[12:16], "little")
    long_end = tail[:_LONG_END_BYTES]
    is_long = len(tail) == _TAIL_BYTES and long_end.startswith(b"PK\x06\x06")
    return int.from_bytes(long_end[40:48], "little") if is_long else size


def packed_entry(key: bytes, value: bytes) -> bytes:
    """A key of a store and its value, as the parts of a store have them, one behind the other."""
    return b"%b%b%b%b" % (len(key).to_bytes(4), len(value).to_bytes(4), key, value)


def entries_of(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a store from pieces of such bytes. Raises ``ValueError`` where these are none."""
    gathered = bytearray()
    for piece in pieces:
        gathered += piece
        at = 0
        while len(gathered) - at >= _LENGTHS:
            key_bytes = int.from_bytes(gathered[at : at + 4])
            value_bytes = int.from_bytes(gathered[at + 4 : at + _LENGTHS])
            if key_bytes > _MAX_KEY_BYTES or value_bytes > _MAX_VALUE_BYTES:
                raise ValueError("an entry of the store is too long")
            begin = at + _LENGTHS
            end = begin + key_bytes + value_bytes
            if end > len(gathered):
                break
            yield (
                bytes(gathered[begin : begin + key_bytes]),
                bytes(gathered[begin + key_bytes : end]),
            )
            at = end
        del gathered[:at]
    if gathered:
        raise ValueError("the last entry of the store is cut off")


def _place(id: str, name: str) -> bytes:
    return f"{id}/{name}".encode()


def _cipher(passphrase: str, salt: str) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    key = hashlib.scrypt(passphrase.encode(), salt=bytes.fromhex(salt), **_SCRYPT)
    return AESGCM(key)
