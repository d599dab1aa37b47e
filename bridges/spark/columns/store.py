"""Location of a spec's table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bridges.spark.columns.catalog import entry_of
from broker.config.object_stores import StoreSettings
from broker.core.errors import Unavailable

if TYPE_CHECKING:
    from bridges.spark.columns.place import Place


def place_of(spec: Mapping[str, Any]) -> Place:
    """The place of a spec's table, as the API gives specs: with its store, and its catalog if it has one.

    Raises:
        SecretUnreadable: a variable or file that a secret refers to is not there.
        Unavailable: the configuration no longer has the store or catalog, or it must not be called.
    """
    from bridges.spark.columns.place import Place  # of Spark's extra

    store = spec.get("store")
    if not store and "://" in spec["path"]:
        raise Unavailable(
            f"path: expected a URL in one of the stores of lake.stores that may be called, got {spec['path']}"
        )
    options = StoreSettings.model_validate(store).options() if store else {}
    return Place(spec["path"], options, entry_of(spec))
