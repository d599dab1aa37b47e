"""Backups of a running node: its objects, settings and files, and what its store holds under keys, as one file.

With a passphrase everything is encrypted, secrets and their key among it. Without one, secrets are left out: where an
object or a setting has one, the backup has a reference to a named secret in its place. Records of streams, queues and
sessions are in a backup only when asked for; without them, logs continue at their next offset.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from threading import Lock
from typing import Any, Final

from pydantic import ValidationError

from broker.config.assignments import KeyPath, read_lines
from broker.config.file_names import API_FILE, BASE_FILE, MAIN_DIRECTORY, MAIN_FILE
from broker.config.objects import without_objects
from broker.config.root import Config, split
from broker.config.secret_text import SecretText, SecretUrl, secrets_in
from broker.config.secrets import MASK
from broker.config.sections import ApiFile, Sections
from broker.config.vault import KEY_FILE, Vault
from broker.core import jsontext
from broker.core.clock import Clock
from broker.core.errors import Invalid, Problem, Unavailable
from broker.core.kinds import Kind, kinds_in_files, plural
from broker.core.times import rfc3339
from broker.storage.archive import (
    FORMAT,
    FORMAT_OF_CELLS,
    PART_BYTES,
    ArchiveWriter,
    Manifest,
    MissingSecret,
    entries_of,
    packed_entry,
)
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Store

# Files and folders of the data directory that any backup has, and those that only an encrypted one has: they may hold
# secrets.
FILES: Final = (API_FILE, "versions")
SECRET_FILES: Final = (
    KEY_FILE, "api.token", MAIN_FILE, MAIN_DIRECTORY, BASE_FILE, "files", "secrets",
)  # fmt: skip
# Size of a file, and number of files, beyond which others are left out.
_MAX_FILE_BYTES: Final = 256 * 1024 * 1024
_MAX_FILES: Final = 100_000
# Keys of the store that are not in a backup: they are of this machine, and many.
_NOT_KEPT: Final = (b"kvalues/metrics-history/",)
# Keys that only an encrypted backup has: the secret of stand-ins for users that do not exist.
_SECRET_KEYS: Final = (b"kaccess/secret",)
_SECRETS: Final = "secrets"
_NOT_OF_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_NAME: Final = 60
# Bytes that a cell sends of its store at a time, unless a value is larger.
_PIECE_BYTES: Final = 256 * 1024

# Reads another cell's store, by its number, whether with messages, and whether for an encrypted backup: the pieces of
# ``Backups.stored``. Blocks; raises ``Unavailable`` where the cell does not answer.
ReadStore = Callable[[int, bool, bool], Generator[bytes]]


class Backups:
    """Makes backups, one at a time."""

    def __init__(
        self,
        data_dir: Path,
        sections: Sections,
        store: Store,
        vault: Vault,
        clock: Clock,
        config: Callable[[], Config],
        node: str,
        version: str,
    ) -> None:
        self._data_dir = data_dir
        self._sections = sections
        self._store = store
        self._vault = vault
        self._clock = clock
        self._config = config
        self._node = node
        self._version = version
        self._making = Lock()
        self._others: Sequence[int] = ()
        self._read: ReadStore | None = None

    def read_others(self, cells: Sequence[int], read: ReadStore) -> None:
        """Add the stores of other cells to backups."""
        self._others = cells
        self._read = read

    def stored(self, *, messages: bool, is_encrypted: bool) -> Iterator[bytes]:
        """Entries of this cell's store for a backup (``archive.packed_entry``), in pieces. For a thread."""
        if not isinstance(self._store, RocksStore):
            raise Unavailable("a node without a data directory has nothing to back up")
        gathered = bytearray()
        for entry in _kept(self._store.entries(messages=messages), is_encrypted=is_encrypted):
            gathered += packed_entry(*entry)
            if len(gathered) >= _PIECE_BYTES:
                yield bytes(gathered)
                gathered.clear()
        yield bytes(gathered)

    def make(self, key: str | None, messages: bool) -> Generator[bytes]:
        """The bytes of a backup; ``key`` is the passphrase that encrypts it. The iterator blocks, and raises what is
        wrong before it gives anything: it is for a thread.

        Raises:
            Unavailable: another backup is being made, or there is no data directory.
            Invalid: without a key, the file of the API must be as the API writes it.
        """
        file = self._sections.file
        store = self._store
        if file is None or not isinstance(store, RocksStore):
            raise Unavailable("a node without a data directory has nothing to back up")
        if not self._making.acquire(blocking=False):
            raise Unavailable("another backup is being made", 10)
        try:
            yield from self._pieces(file, store, key, messages)
        finally:
            self._making.release()

    def _pieces(
        self, file: ApiFile, store: RocksStore, key: str | None, messages: bool
    ) -> Iterator[bytes]:
        made_at = rfc3339(self._clock.now_ns())
        archive = ArchiveWriter(key)
        content = file.content()
        left_out = _LeftOut()
        holds = Counter[str]()
        read = read_lines(content.decode(errors="replace"), API_FILE)
        values = {} if read is None else read[0]
        for section, kind in kinds_in_files().items():
            holds[plural(kind.name)] += len(_at(values, tuple(section.split("."))) or ())
        if key is None:
            if read is None and content:
                problem = Problem("expected a key, since api.hocon was edited by hand", "/key")
                raise Invalid("the backup cannot be made", [problem])
            config = self._config()
            content = file.text_of(_Masking(config, left_out).without_secrets(values))
        elif not (self._data_dir / KEY_FILE).exists() and _at(values, (_SECRETS,)):
            left_out.note(f"the key of the secrets, which is in {self._vault.where}")
        yield from _parts(archive, API_FILE, content)
        for path in self._files(key is not None, left_out):
            holds["files"] += 1
            try:
                data = (self._data_dir / path).read_bytes()
            except OSError as error:
                left_out.note(f"{path} ({(error.strerror or str(error)).lower()})")
                continue
            yield from _parts(archive, path, data)
        own = _kept(store.entries(messages=messages), is_encrypted=key is not None)
        yield from _store_parts(archive, holds, own, 0)
        for cell in self._others:  # not before: one that waits for its reader is cut off
            assert self._read is not None
            with closing(self._read(cell, messages, key is not None)) as pieces:
                yield from _store_parts(archive, holds, entries_of(pieces), cell)
        manifest = Manifest(
            format=FORMAT_OF_CELLS if self._others else FORMAT,
            id=archive.id,
            version=self._version,
            node=self._node,
            made_at=made_at,
            messages=messages,
            salt=archive.salt,
            holds={name: number for name, number in sorted(holds.items()) if number},
            left_out=left_out.sentences,
            missing_secrets=list(left_out.secrets.values()),
            parts=archive.parts,
            cells=1 + len(self._others),
        )
        yield archive.end(manifest)

    def _files(self, has_key: bool, left_out: _LeftOut) -> Iterator[str]:
        """The files in the data directory besides that of the API, relative to it."""
        for file in self._config().files:
            if not Path(file).resolve().is_relative_to(self._data_dir):
                left_out.note(f"{file}, which is outside the data directory")
        count = 0
        for name in (*FILES[1:], *SECRET_FILES):
            for path in _walked(self._data_dir / name, left_out):
                relative = str(path.relative_to(self._data_dir))
                count += 1
                if not has_key and name in SECRET_FILES:
                    if name != KEY_FILE and name != "api.token":
                        left_out.note(f"{relative}, which may hold secrets")
                elif count > _MAX_FILES or path.stat().st_size > _MAX_FILE_BYTES:
                    left_out.note(f"{relative}, which is beyond the limits of a backup")
                else:
                    yield relative


def _kept(
    entries: Iterable[tuple[bytes, bytes]], *, is_encrypted: bool
) -> Iterator[tuple[bytes, bytes]]:
    """The keys that a backup has, with their values."""
    skipped = _NOT_KEPT if is_encrypted else (*_NOT_KEPT, *_SECRET_KEYS)
    return (entry for entry in entries if not entry[0].startswith(skipped))


def _store_parts(
    archive: ArchiveWriter, holds: Counter[str], entries: Iterator[tuple[bytes, bytes]], cell: int
) -> Iterator[bytes]:
    gathered = bytearray()
    for key, value in entries:
        if key[:1] == b"k":
            holds[f"{_word_of(key)} in the store"] += 1
        gathered += packed_entry(key, value)
        while len(gathered) >= PART_BYTES:
            yield archive.part("store", bytes(gathered[:PART_BYTES]), cell=cell)
            del gathered[:PART_BYTES]
    if gathered or cell:
        yield archive.part("store", bytes(gathered), cell=cell)


def _word_of(key: bytes) -> str:
    """The collection of a key of the store."""
    return key[1:].partition(b"/")[0].decode("ascii", "replace")


def _parts(archive: ArchiveWriter, path: str, data: bytes) -> Iterator[bytes]:
    """A file as parts; an empty one has one too."""
    for begin in range(0, max(1, len(data)), PART_BYTES):
        yield archive.part("file", data[begin : begin + PART_BYTES], path)


def _walked(path: Path, left_out: _LeftOut) -> Iterator[Path]:
    """The regular files at a path, links aside."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if S_ISDIR(mode):
        for inner in sorted(path.iterdir()):
            yield from _walked(inner, left_out)
    elif S_ISREG(mode):
        yield path
    else:
        left_out.note(f"{path.name}, which is not a regular file")


@dataclass(slots=True)
class _LeftOut:
    """Things that a backup does not have: sentences, and secrets without their values by name."""

    sentences: list[str] = field(default_factory=list)
    secrets: dict[str, MissingSecret] = field(default_factory=dict)

    def note(self, sentence: str) -> None:
        if len(self.sentences) < _MAX_FILES:
            self.sentences.append(sentence)

    def reference(self, place: KeyPath) -> str:
        """A reference to a named secret in place of the one that is there."""
        wanted = _NOT_OF_A_NAME.sub("-", "-".join(place)).strip("-")[:_LONGEST_NAME] or "restored"
        name = wanted
        number = 1
        while name in self.secrets:
            number += 1
            name = f"{wanted}-{number}"
        self.secrets[name] = MissingSecret(name, f"Was in {'.'.join(place)}."[:1000])
        return f"${{secret:{name}}}"


class _Masking:
    """Takes secrets out of objects and settings."""

    def __init__(self, config: Config, left_out: _LeftOut) -> None:
        self._models = config.models
        self._left_out = left_out

    def without_secrets(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """The same objects and settings, with references in place of secrets."""
        values = deepcopy(dict(saved))
        for name, secret in (values.pop(_SECRETS, None) or {}).items():
            description = str(secret.get("description", ""))
            self._left_out.secrets[name] = MissingSecret(name, description)
        for section, kind in kinds_in_files().items():
            path = tuple(section.split("."))
            objects = _at(values, path)
            for name in list(objects) if isinstance(objects, dict) else ():
                self._mask_object(kind, (*path, name), objects)
        self._mask_settings(values)
        return values

    def _mask_object(self, kind: Kind, path: KeyPath, objects: dict[str, Any]) -> None:
        name = path[-1]
        written = {"name": name, **objects[name]}
        shown = kind.as_spec(written)
        masked = self._replaced(objects[name], shown, (kind.short, name))
        if len(shown) <= 1 < len(objects[name]) or any(
            _has_secret(model, written, masked) for model in kind.spec_models()
        ):
            self._left_out.note(f"{kind.name} {name!r}, whose secrets this release cannot find")
            del objects[name]
        else:
            objects[name] = masked

    def _mask_settings(self, values: dict[str, Any]) -> None:
        sections = [tuple(section.split(".")) for section in kinds_in_files()]
        data, _ = split(without_objects(values, sections), self._models, ())
        for section, written in data.items():
            path = tuple(section.split("."))
            above = _at(values, path[:-1])
            model = self._models[section]
            try:
                shown = model.model_validate(written).model_dump(mode="json")
            except ValidationError:
                shown = {}
            # a section that may be a list has it as its only member
            form: Any = next(iter(shown.values()), []) if isinstance(written, list) else shown
            masked = self._replaced(written, form, path)
            if not shown or _has_secret(model, written, masked):
                self._left_out.note(f"settings {section}, whose secrets this release cannot find")
                masked = [] if isinstance(written, list) else {}
            if isinstance(written, list):
                above[path[-1]] = masked
            else:
                kept = {key: at for key, at in above[path[-1]].items() if key not in written}
                above[path[-1]] = masked | kept

    def _replaced(self, written: Any, shown: Any, place: KeyPath) -> Any:
        """A value with references where it is shown as stars."""
        if isinstance(written, dict) and isinstance(shown, dict):
            return {
                key: self._replaced(value, shown.get(key), (*place, key))
                for key, value in written.items()
            }
        if isinstance(written, list) and isinstance(shown, list):
            pairs = zip(written, shown, strict=False)
            return [
                self._replaced(value, inner, (*place, str(number)))
                for number, (value, inner) in enumerate(pairs)
            ]
        if not isinstance(shown, str) or MASK not in shown or written == shown:
            return written
        if shown == MASK:
            return self._left_out.reference(place)
        self._left_out.note(f"values in the URL of {'.'.join(place)}")
        return shown.replace(MASK, "left-out")


def _has_secret(model: Any, written: Any, masked: Any) -> bool:
    """True if a value still has the text of a secret of the model."""
    if isinstance(written, dict):
        names = {field.alias or name for name, field in model.model_fields.items()}
        written = {name: value for name, value in written.items() if name in names}
    try:
        secrets = list(secrets_in(model.model_validate(written)))
    except ValidationError:
        return False
    text = jsontext.encode(masked).decode()
    hidden = {
        jsontext.encode(part).decode()[1:-1] for secret in secrets for part in _hidden(secret)
    }
    return any(part in text for part in hidden if part)


def _hidden(secret: SecretText) -> Iterator[str]:
    """The parts of a secret as it is written that must not be shown."""
    if isinstance(secret, SecretUrl):
        yield from secret.hidden
    elif secret.shown == MASK:
        yield secret.written


def _at(values: Any, path: KeyPath) -> Any:
    for key in path:
        values = values.get(key) if isinstance(values, dict) else None
    return values
