"""Where the files of a table are: a directory of this machine, or a prefix of an object store.

Used on executors too: imports nothing of the broker. Arrow reads and writes the files; delta-rs commits by its own
client of the store, which takes the same options under other names. A put that must not replace another's goes through
obstore, as Arrow has none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow.fs as fs

_CONNECT_S: Final = 5
_ANSWER_S: Final = 8
"""delta-rs holds the interpreter meanwhile, and with it the reports of all tables."""
_LOOK_S: Final = 4
"""For an answer of a few bytes."""
_ATTEMPTS: Final = 4
_GIVE_UP_S: Final = 8
"""After that no further attempt is made: a table whose store does not answer fails soon, and is tried again."""
_S3_OPTIONS: Final = {
    "endpoint": "aws_endpoint",
    "region": "aws_region",
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "anonymous": "aws_skip_signature",
}
_GS_OPTIONS: Final = {"endpoint": "google_base_url", "anonymous": "google_skip_signature"}
_NO_GS_KEY: Final = '{"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": true}'
"""Without it, reads send no credentials and writes ask the instance for some."""
_ABFSS_OPTIONS: Final = {
    "endpoint": "azure_storage_endpoint",
    "account_key": "azure_storage_account_key",
    "sas_token": "azure_storage_sas_key",
    "tenant_id": "azure_storage_tenant_id",
    "client_id": "azure_storage_client_id",
    "client_secret": "azure_storage_client_secret",
    "anonymous": "azure_skip_signature",
}
_OPTIONS: Final = {"s3": _S3_OPTIONS, "gs": _GS_OPTIONS, "abfss": _ABFSS_OPTIONS}
"""What delta-rs and obstore call the options of a store, by scheme."""


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
    (``bridges.spark.store``); without credentials those of the environment or of the instance are used, wherever the
    place is used.
    """

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    entry: CatalogEntry | None = field(default=None, repr=False)
    """Where the table's catalog is one that others share."""

    def __str__(self) -> str:
        return self.url

    @property
    def is_local(self) -> bool:
        return "://" not in self.url

    @property
    def uri(self) -> str:
        """As Iceberg writes it."""
        return Path(self.url).as_uri() if self.is_local else self.url

    @property
    def files(self) -> fs.FileSystem:
        """What reads and writes its files, under ``path``."""
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
        client = {"timeout": f"{_ANSWER_S}s", "connect_timeout": f"{_CONNECT_S}s", **self._allow_http}
        retry = {"max_retries": str(_ATTEMPTS), "retry_timeout": f"{_GIVE_UP_S}s"}
        return {**self._store_options, **client, **retry}

    @property
    def _store_options(self) -> dict[str, str]:
        parts = urlsplit(self.url)
        scheme = parts.scheme
        found = {_OPTIONS[scheme][name]: value for name, value in self.options.items()}
        if scheme == "abfss" and "endpoint" in self.options:  # one for many accounts: Arrow adds the account by itself
            found["azure_storage_endpoint"] += f"/{_account(parts.hostname)}"
        if scheme == "gs" and "anonymous" in self.options:
            found["google_service_account_key"] = _NO_GS_KEY
        # Two drivers must not both put a version: the put of the second one is refused. The other stores always do.
        return {**found, "aws_conditional_put": "etag"} if scheme == "s3" else found

    @property
    def _allow_http(self) -> dict[str, str]:
        return {"allow_http": "true"} if self.options.get("endpoint", "").startswith("http://") else {}

    def put_new(self, name: str, content: bytes) -> bool:
        """Write a file of a store unless there is one of that name; whether this call has written it."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        store = self._store()
        try:
            obstore.put(store, name, content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            # A put whose answer was lost is sent again and finds itself.
            return bytes(obstore.get(store, name).bytes()) == content
        return True

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files, named as ``files`` does; those that are gone are passed over."""
        if not self.is_local and paths:
            # Arrow would put an empty object in the place of a directory.
            import obstore

            obstore.delete(self._store(), [path.removeprefix(self.path).lstrip("/") for path in paths])
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
            with contextlib.suppress(FileNotFoundError, PermissionDeniedError, UnauthenticatedError):
                obstore.head(self._store(_LOOK_S, _LOOK_S), "_answers")

    def _store(self, answer_s: int = _ANSWER_S, give_up_s: int = _GIVE_UP_S) -> Any:
        from obstore.store import from_url

        config: Any = self._store_options
        connect_s = min(_CONNECT_S, answer_s)
        client: Any = {"timeout": f"{answer_s}s", "connect_timeout": f"{connect_s}s", **self._allow_http}
        retry: Any = {"max_retries": _ATTEMPTS, "retry_timeout": timedelta(seconds=give_up_s)}
        return from_url(self.url, config=config, client_options=client, retry_config=retry)


def _account(host: str | None) -> str:
    return (host or "").partition(".")[0]


def path_of(uri: str) -> str:
    """A URI or a path, as Arrow's file systems call it."""
    parts = urlsplit(uri)
    if parts.scheme in ("", "file"):
        return unquote(parts.path)
    return f"{parts.username or parts.netloc}{parts.path}"


@lru_cache(maxsize=16)
def _file_system(scheme: str, host: str, options: tuple[tuple[str, str], ...]) -> fs.FileSystem:
    given: dict[str, Any] = dict(options)
    address = urlsplit(given.pop("endpoint", ""))
    anonymous = {"anonymous": True} if given.pop("anonymous", None) else {}
    if scheme == "abfss":
        of_endpoint = (("authority", address.netloc), ("scheme", address.scheme))
        where = {f"{api}_storage_{name}": value for api in ("blob", "dfs") for name, value in of_endpoint if value}
        return fs.AzureFileSystem(_account(host), **given, **where)
    where = {"endpoint_override": address.netloc, "scheme": address.scheme} if address.netloc else {}
    if scheme == "gs":
        return fs.GcsFileSystem(**anonymous, **where, retry_time_limit=timedelta(seconds=_GIVE_UP_S))
    given = {_S3_ARGUMENTS.get(name, name): value for name, value in given.items()}
    return fs.S3FileSystem(
        **given,
        **anonymous,
        **where,
        connect_timeout=_CONNECT_S,
        request_timeout=_ANSWER_S,
        allow_delayed_open=True,  # a small file is one request, and a writer that dies before leaves nothing
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    )


_S3_ARGUMENTS: Final = {"access_key_id": "access_key", "secret_access_key": "secret_key"}
