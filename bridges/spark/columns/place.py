"""Location of a table's files: a directory of this machine, or a prefix of an object store.

Used on executors too: imports nothing of the broker that needs more than Python. Arrow reads and writes the files;
delta-rs commits by its own client of the store, which takes the same options under other names. A put that must not
replace another's goes through obstore, as Arrow has none.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow.fs as fs

from broker.core.store_clients import ATTEMPTS, CONNECT_S, account, client_options, store_options

# delta-rs holds the interpreter while it opens a table, and with it the reports of all tables.
_ANSWER_S: Final = 8
# For an answer of a few bytes.
_LOOK_S: Final = 4
# After that no further attempt is made: a table whose store does not answer fails soon, and is tried again.
_GIVE_UP_S: Final = 8


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A table in a catalog: ``identifier`` is its namespace and name, ``properties`` are those of pyiceberg."""

    catalog: str
    type: str
    uri: str
    identifier: tuple[str, ...]
    properties: Mapping[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return f"{'.'.join(self.identifier)} of catalog {self.catalog!r}"


@dataclass(frozen=True, slots=True)
class Place:
    """A directory: ``url`` is a path of this machine, or ``s3://BUCKET/…``, ``gs://BUCKET/…`` or
    ``abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/…``.

    ``options`` say how the store is reached, credentials included, under the names that its settings have
    (``bridges.spark.columns.store``); without credentials those of the environment or of the instance are used,
    wherever the place is used.
    """

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    entry: CatalogEntry | None = field(default=None, repr=False)
    """The shared catalog of the table."""

    def __str__(self) -> str:
        return self.url

    @property
    def is_local(self) -> bool:
        return "://" not in self.url

    @property
    def uri(self) -> str:
        """The form that Iceberg writes: readers take a path of a disk as it is, without escapes."""
        return f"file://{Path(self.url)}" if self.is_local else self.url

    @property
    def files(self) -> fs.FileSystem:
        """The file system that reads and writes its files, under ``path``."""
        if self.is_local:
            return fs.LocalFileSystem()
        parts = urlsplit(self.url)
        return _file_system(parts.scheme, parts.hostname or "", tuple(sorted(self.options.items())))

    @property
    def path(self) -> str:
        """The directory, as ``files`` calls it."""
        return self.url if self.is_local else path_of(self.url)

    def path_of(self, name: str) -> str:
        """A file in the directory, as ``files`` calls it."""
        return f"{self.path.rstrip('/')}/{name}"

    def child(self, name: str) -> Place:
        """A directory in it."""
        return Place(f"{self.url.rstrip('/')}/{name}", self.options)

    def beside(self, suffix: str) -> Place:
        """A directory next to it, with a longer name, also in the catalog."""
        entry = self.entry
        if entry is not None:
            *namespace, name = entry.identifier
            entry = replace(entry, identifier=(*namespace, name + suffix))
        return Place(self.url.rstrip("/") + suffix, self.options, entry)

    @property
    def directory(self) -> Place:
        """The same without the catalog, of which tasks need not know the credentials."""
        return replace(self, entry=None)

    @property
    def parent(self) -> Place:
        """The directory that it is in."""
        return Place(self.url.rstrip("/").rpartition("/")[0], self.options)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.url.rstrip("/").rpartition("/")[2]

    @property
    def storage_options(self) -> dict[str, str] | None:
        """The options as delta-rs takes them."""
        if self.is_local:
            return None
        retry = {"max_retries": str(ATTEMPTS), "retry_timeout": f"{_GIVE_UP_S}s"}
        return {
            **store_options(self.url, self.options),
            **client_options(self.options, _ANSWER_S),
            **retry,
        }

    def put_new(self, name: str, content: bytes) -> bool:
        """Write a file unless there is one of that name; whether this call has written it."""
        if self.is_local:
            return _written(Path(self.path_of(name)), content, os.link)
        import obstore
        from obstore.exceptions import AlreadyExistsError

        store = self._store()
        try:
            obstore.put(store, name, content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            # A put whose answer was lost is sent again and finds itself.
            return bytes(obstore.get(store, name).bytes()) == content
        return True

    def put(self, name: str, content: bytes) -> None:
        """Write a file, in the place of one of that name."""
        if self.is_local:
            _written(Path(self.path_of(name)), content, os.replace)
            return
        with self.files.open_output_stream(self.path_of(name)) as file:
            file.write(content)

    def names(self, folder: str, after: str) -> list[str]:
        """The names of files in a directory that come after another one in the alphabet."""
        if self.is_local:
            with contextlib.suppress(FileNotFoundError):
                return [name for name in os.listdir(self.path_of(folder)) if name > after]
            return []
        import obstore

        objects = obstore.list(self._store(), folder, offset=f"{folder}/{after}").collect()
        return [entry["path"].rpartition("/")[2] for entry in objects]

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files, named as ``files`` does; those that are gone are passed over."""
        if not self.is_local and paths:
            # Arrow would put an empty object in the place of a directory.
            import obstore

            obstore.delete(
                self._store(), [path.removeprefix(self.path).lstrip("/") for path in paths]
            )
            return
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self.files.delete_file(path)

    def check_answers(self) -> None:
        """Ask the store for a file that need not be there.

        Raises:
            Exception: of obstore, that it does not answer. What it allows is seen where that is done.
        """
        import obstore
        from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

        if not self.is_local:
            with contextlib.suppress(
                FileNotFoundError, PermissionDeniedError, UnauthenticatedError
            ):
                obstore.head(self._store(_LOOK_S, _LOOK_S), "_answers")

    def _store(self, answer_s: int = _ANSWER_S, give_up_s: int = _GIVE_UP_S) -> Any:
        return _client(self.url, tuple(sorted(self.options.items())), answer_s, give_up_s)


def _written(path: Path, content: bytes, move: Callable[[Path, Path], None]) -> bool:
    """Write a file of this machine, of which others see all or nothing, also after a loss of power; false where there
    is one that ``move`` does not replace."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(f"{uuid.uuid4().hex}.{path.name}")
    try:
        with whole.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        move(whole, path)
    except FileExistsError:
        return False
    finally:
        whole.unlink(missing_ok=True)
    return True


def path_of(uri: str) -> str:
    """A URI or a path, as Arrow's file systems call it."""
    if uri.startswith("file:"):
        return uri.removeprefix("file:").removeprefix("//")
    parts = urlsplit(uri)
    return uri if not parts.scheme else f"{parts.username or parts.netloc}{parts.path}"


@lru_cache(maxsize=64)
def _client(url: str, options: tuple[tuple[str, str], ...], answer_s: int, give_up_s: int) -> Any:
    """One that keeps its connections: an Iceberg commit asks the store several times."""
    from obstore.store import from_url

    config: Any = store_options(url, dict(options))
    client: Any = client_options(dict(options), answer_s)
    retry: Any = {"max_retries": ATTEMPTS, "retry_timeout": timedelta(seconds=give_up_s)}
    return from_url(url, config=config, client_options=client, retry_config=retry)


@lru_cache(maxsize=16)
def _file_system(scheme: str, host: str, options: tuple[tuple[str, str], ...]) -> fs.FileSystem:
    arguments: dict[str, Any] = dict(options)
    address = urlsplit(arguments.pop("endpoint", ""))
    anonymous = {"anonymous": True} if arguments.pop("anonymous", None) else {}
    if scheme == "abfss":
        of_endpoint = (("authority", address.netloc), ("scheme", address.scheme))
        where = {
            f"{api}_storage_{name}": value
            for api in ("blob", "dfs")
            for name, value in of_endpoint
            if value
        }
        return fs.AzureFileSystem(account(host), **arguments, **where)
    where = (
        {"endpoint_override": address.netloc, "scheme": address.scheme} if address.netloc else {}
    )
    if scheme == "gs":
        return fs.GcsFileSystem(
            **anonymous, **where, retry_time_limit=timedelta(seconds=_GIVE_UP_S)
        )
    arguments = {_S3_ARGUMENTS.get(name, name): value for name, value in arguments.items()}
    return fs.S3FileSystem(
        **arguments,
        **anonymous,
        **where,
        connect_timeout=CONNECT_S,
        request_timeout=_ANSWER_S,
        allow_delayed_open=True,  # a small file is one request, and a writer that dies before leaves nothing
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
    )


_S3_ARGUMENTS: Final = {"access_key_id": "access_key", "secret_access_key": "secret_key"}
