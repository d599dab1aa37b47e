"""Iceberg's catalogue of one table in an object store: version N of the table is ``metadata/vN.metadata.json``.

That is how Iceberg keeps tables in file systems, so other engines find the newest version by its name. Here a version
is put only where there is none of that number: of two drivers with the same one, the second is refused.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pyarrow.fs as fs
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.typedef import EMPTY_DICT, Properties

from bridges.spark.tables.place import Place, path_of

_VERSION = re.compile(r"/v(\d+)\.metadata\.json$")
_KEPT, _KEPT_DEFAULT = "write.metadata.previous-versions-max", 100
_HINT = "metadata/version-hint.text"
"""Engines that do not list look for the newest version here first."""


class PlaceIO(PyArrowFileIO):
    """Reads and writes a table's files as ``Place`` says."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place
        self.fs_by_scheme = self._files

    def _files(self, scheme: str, netloc: str | None = None) -> fs.FileSystem:
        return self._place.files

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        return "", "", path_of(location)

    def delete(self, location: Any) -> None:
        """Remove a file by its location."""
        self._place.remove([path_of(getattr(location, "location", location))])


class StoreCatalog(NoopCatalog):
    """The table at a place of a store, whatever it is called."""

    def __init__(self, place: Place) -> None:
        super().__init__("store")
        self._place, self._io = place, PlaceIO(place)

    def create_namespace(self, namespace: Any, properties: Properties = EMPTY_DICT) -> None:
        """There is none to create."""

    def load_table(self, identifier: Any) -> Table:
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
        metadata = new_table_metadata(schema, partition_spec, sort_order, self._place.uri, properties)
        if not self._put(1, metadata):
            raise TableAlreadyExistsError(f"there is a table at {self._place}")
        return self.load_table(identifier)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        current = self.load_table(table.name())
        for requirement in requirements:
            requirement.validate(current.metadata)
        metadata = update_table_metadata(current.metadata, updates, metadata_location=current.metadata_location)
        version = _number(current.metadata_location) + 1
        if not self._put(version, metadata):
            raise CommitFailedException(f"{self._place} was changed by another writer")
        # A driver that was held up until its number was removed again puts a version that no one sees.
        if self._newest() - version >= int(metadata.properties.get(_KEPT, _KEPT_DEFAULT)):
            raise CommitStateUnknownException(f"{self._place} was changed by other writers many times")
        with contextlib.suppress(OSError), self._place.files.open_output_stream(self._place.path_of(_HINT)) as hint:
            hint.write(str(version).encode())
        return CommitTableResponse.model_construct(metadata=metadata, metadata_location=self._location(version))

    def _put(self, version: int, metadata: TableMetadata) -> bool:
        name = f"metadata/v{version}.metadata.json"
        return self._place.put_new(name, metadata.model_dump_json(exclude_none=True).encode())

    def _newest(self) -> int:
        """The newest version; 0 where there is none."""
        folder = fs.FileSelector(self._place.path_of("metadata"), allow_not_found=True)
        return max((_number(found.path) for found in self._place.files.get_file_info(folder)), default=0)

    def _location(self, version: int) -> str:
        return f"{self._place.uri}/metadata/v{version}.metadata.json"


def _number(path: str) -> int:
    found = _VERSION.search(path)
    return int(found[1]) if found else 0
