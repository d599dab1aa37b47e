"""Iceberg's catalogue of one table, in its directory: version N of the table is ``metadata/vN.metadata.json``.

That is how Iceberg keeps tables in file systems, so other engines find the newest version by its name. Here a version
is written only if its number is free: of two drivers with the same one, the second is refused.

Earlier releases kept a local table's newest version in ``_catalog.db``. Such a table is continued from there, and the
file continues to name the newest version, for the readers that use it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from typing import Any, Final

import pyarrow.fs as fs
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import PyArrowFileIO, PyArrowLocalFileSystem
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.typedef import EMPTY_DICT, Properties

from bridges.spark.columns.place import Place, path_of

_VERSION = re.compile(r"(?:^|/)v(\d+)\.metadata\.json$")
_KEPT = "write.metadata.previous-versions-max"
_KEPT_DEFAULT = 100
# Engines that do not list look for the newest version here first.
_HINT = "metadata/version-hint.text"
_EARLIER: Final = "_catalog.db"
# For how long a reader of that file may keep it locked.
_LOCKED_S: Final = 10.0


class PlaceIO(PyArrowFileIO):
    """Reads and writes a table's files as ``Place`` says."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place
        self.fs_by_scheme = self._files

    def _files(self, scheme: str, netloc: str | None = None) -> fs.FileSystem:
        # The first file in a directory of this machine creates it, as in a store.
        return PyArrowLocalFileSystem() if self._place.is_local else self._place.files

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        return "", "", path_of(location)

    def delete(self, location: Any) -> None:
        """Remove a file by its location."""
        self._place.remove([path_of(getattr(location, "location", location))])


class PlaceCatalog(NoopCatalog):
    """The table at a place, whatever it is called."""

    def __init__(self, place: Place) -> None:
        super().__init__("place")
        self._place, self._io = place, PlaceIO(place)

    def create_namespace(self, namespace: Any, properties: Properties = EMPTY_DICT) -> None:
        """There is none to create."""

    def load_table(self, identifier: Any) -> Table:
        self._continue_earlier()
        version = self._newest()
        if version == 0:
            raise NoSuchTableError(f"there is no table at {self._place}")
        location = self._location(version)
        metadata = FromInputFile.table_metadata(self._io.new_input(location))
        return Table(identifier, metadata, location, self._io, self)

    def create_table(
        self,
        identifier: Any,
        schema: Any,
        location: str | None = None,
        partition_spec: Any = UNPARTITIONED_PARTITION_SPEC,
        sort_order: Any = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> Table:
        assert isinstance(schema, Schema)
        metadata = new_table_metadata(
            schema, partition_spec, sort_order, self._place.uri, properties
        )
        if not self._put(1, metadata):
            raise TableAlreadyExistsError(f"there is a table at {self._place}")
        self._name_newest(1)
        return self.load_table(identifier)

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        current = self.load_table(table.name())
        for requirement in requirements:
            requirement.validate(current.metadata)
        metadata = update_table_metadata(
            current.metadata, updates, metadata_location=current.metadata_location
        )
        version = _number(current.metadata_location) + 1
        if not self._put(version, metadata):
            raise CommitFailedException(f"{self._place} was changed by another writer")
        # A driver that was held up until its number was removed again puts a version that no one sees.
        if self._newest() - version >= int(metadata.properties.get(_KEPT, _KEPT_DEFAULT)):
            raise CommitStateUnknownException(
                f"{self._place} was changed by other writers many times"
            )
        self._name_newest(version)
        return CommitTableResponse.model_construct(
            metadata=metadata, metadata_location=self._location(version)
        )

    def _put(self, version: int, metadata: TableMetadata) -> bool:
        name = f"metadata/v{version}.metadata.json"
        return self._place.put_new(name, metadata.model_dump_json(exclude_none=True).encode())

    def _newest(self) -> int:
        """The newest version; 0 if there are no versions."""
        return max((_number(name) for name in self._place.names("metadata", after="v")), default=0)

    def _name_newest(self, version: int) -> None:
        """Name a version where readers look for the newest one. Those that list the directory find it as it is."""
        self._hint(version)
        with contextlib.suppress(sqlite3.Error):
            if (earlier := self._earlier()) is not None:
                with contextlib.closing(earlier):
                    self._point(earlier, version)

    def _hint(self, version: int) -> None:
        with contextlib.suppress(OSError):
            self._place.put(_HINT, str(version).encode())

    def _earlier(self) -> sqlite3.Connection | None:
        path = self._place.path_of(_EARLIER)
        if not self._place.is_local or not os.path.exists(path):
            return None
        return sqlite3.connect(path, timeout=_LOCKED_S, isolation_level=None)

    def _point(self, earlier: sqlite3.Connection, version: int) -> None:
        change = "UPDATE iceberg_tables SET previous_metadata_location = metadata_location, metadata_location = ?"
        earlier.execute(change, [self._location(version)])

    def _continue_earlier(self) -> None:
        """Make the version that an earlier release committed the newest one here.

        Raises:
            sqlite3.Error: its file cannot be used.
        """
        earlier = self._earlier()
        if earlier is None:
            return
        with contextlib.closing(earlier):
            if _unnumbered(earlier) is None:
                return
            # Once for all drivers: others commit only when the file names a version of here.
            earlier.execute("BEGIN IMMEDIATE")
            if (location := _unnumbered(earlier)) is not None:
                with self._io.new_input(location).open() as file:
                    version = self._newest() + 1
                    self._place.put_new(f"metadata/v{version}.metadata.json", file.read())
                self._point(earlier, version)
                self._hint(version)
            earlier.execute("COMMIT")

    def _location(self, version: int) -> str:
        return f"{self._place.uri}/metadata/v{version}.metadata.json"


def _number(path: str) -> int:
    version_match = _VERSION.search(path)
    return int(version_match[1]) if version_match else 0


def _unnumbered(earlier: sqlite3.Connection) -> str | None:
    """The newest version by the catalog of an earlier release, None where it is one that has its number as name."""
    row = earlier.execute("SELECT metadata_location FROM iceberg_tables").fetchone()
    return None if row is None or _number(row[0]) else str(row[0])
