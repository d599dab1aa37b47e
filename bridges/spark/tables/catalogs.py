"""The catalog that an Iceberg table is found by: one that others share, or the table's own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from pydantic import ValidationError
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    UnauthorizedError,
)
from pyiceberg.io import FileIO
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from requests import RequestException, Session, Timeout
from sqlalchemy.exc import SQLAlchemyError

from bridges.spark.columns.place import Place
from bridges.spark.tables.contract import TableRefused
from bridges.spark.tables.place_catalog import PlaceCatalog, PlaceIO
from broker.core.errors import MissingDependency, Unavailable

# No answer, or one that does not say whether the request was done.
FAILURES: Final = (RESTError, RequestException, SQLAlchemyError, ValidationError, sqlite3.Error)
_ANSWER_S: Final = 8.0
_PLACE: Final = "sluice.place"


def catalog_of(place: Place) -> Catalog:
    """The catalog of the table at a place; asks a REST catalog for its configuration."""
    entry = place.entry
    if entry is not None:
        files: dict[str, Any] = {}
        if not place.is_local:
            files = {"py-io-impl": f"{__name__}.{_EntryIO.__name__}", _PLACE: place}
        kind = _RestCatalog if entry.type == "rest" else SqlCatalog
        return kind(entry.catalog, **entry.properties, **files)
    return PlaceCatalog(place)


def reopened(catalog: Catalog) -> Catalog:
    """A catalog that sees its file if another one was put in its place."""
    if isinstance(catalog, SqlCatalog):
        catalog.engine.dispose()
    return catalog


@contextmanager
def answered(place: Place) -> Iterator[None]:
    """Say in a sentence why the catalog of a table cannot be used.

    Raises:
        TableRefused: the table is no longer in it.
        Unavailable: it does not answer, or refuses the credentials.
    """
    entry = place.entry
    catalog_text = (
        "the table's catalog" if entry is None else f"catalog {entry.catalog!r} at {entry.uri}"
    )
    try:
        yield
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise TableRefused(
            f"{entry or place} no longer exists: it was dropped or renamed"
        ) from error
    except (UnauthorizedError, ForbiddenError, OAuthError) as error:
        raise Unavailable(f"{catalog_text} refuses the credentials: {_last(error)}") from error
    except Timeout as error:
        raise Unavailable(f"{catalog_text}: no answer within {_ANSWER_S:g} s") from error
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"{catalog_text} needs package {error.name!r}. Try: pip install {error.name}."
        ) from error
    except FAILURES as error:
        raise Unavailable(f"{catalog_text} cannot be used: {_last(error)}") from error


def _last(error: BaseException) -> str:
    """The innermost cause, as its first line says it."""
    while (cause := error.__cause__ or error.__context__) is not None and not isinstance(
        error, RESTError
    ):
        error = cause
    text = str(error) if not isinstance(error, OSError) else error.strerror or str(error)
    return (text.splitlines() or [type(error).__name__])[0][:200]


class _EntryIO(PlaceIO):
    """The files in a store of a table in a shared catalog: read and written as those of any other."""

    def __init__(self, properties: dict[str, Any]) -> None:
        super().__init__(properties[_PLACE])


class _RestCatalog(RestCatalog):
    """One that does not wait for ever, and removes no file of a commit that may be in the table."""

    def _config_headers(self, session: Session) -> None:
        super()._config_headers(session)
        session.request = partial(session.request, timeout=_ANSWER_S)  # type: ignore[method-assign]

    @staticmethod
    def _delete_old_metadata(io: FileIO, base: TableMetadata, metadata: TableMetadata) -> None:
        """The server does it, by the same properties of the table."""

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        """Commit, but take no refusal as proof: it may answer a commit that a proxy sent again after it was done."""
        try:
            done: CommitTableResponse = super().commit_table(table, requirements, updates)
        except CommitFailedException as error:
            raise CommitStateUnknownException(str(error)) from error
        return done
