"""Location of a spec's table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bridges.spark.columns.catalog import entry_of
from broker.config.object_stores import StoreSettings

if TYPE_CHECKING:
    from bridges.spark.columns.place import Place


def place_of(spec: Mapping[str, Any]) -> Place:
    """The place of a spec's table, as the API gives specs: with its store, and its catalog if it has one.

    Raises:
        SecretUnreadable: a variable or file that a secret refers to is not there.
    """
    from bridges.spark.columns.place import Place  # of Spark's extra

    store = spec.get("store")
    options = StoreSettings.model_validate(store).options() if store else {}
    return Place(spec["path"], options, entry_of(spec))
