"""Allowed places of tiers: the object stores of ``lake.stores``, and directories."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.config.allowed import NotAllowed, allowed
from broker.config.object_stores import StoreSettings, url_problem
from broker.config.secret_text import with_references


@dataclass(frozen=True, slots=True)
class TierPlaces:
    """The object stores, and the directory besides those of ``allowed.directories``. ``moves``: whether other machines
    take the cell over, which have another data directory."""

    stores: Sequence[StoreSettings] = ()
    own: Path = Path("tiers")
    moves: bool = False

    def problem(self, url: str) -> str | None:
        """Reason why no tier can be at a URL or path, None if one can."""
        if importlib.util.find_spec("obstore") is None:
            return "expected the package obstore, which is not installed. Try: pip install 'sluicemq[tier]'"
        if "://" in url:
            return url_problem(url, self.stores)
        try:
            directory = allowed().directory(Path(url), self.own)
        except NotAllowed as error:
            return str(error)
        if self.moves and directory.is_relative_to(self.own.parent.resolve()):
            return (
                "expected an object store, or a directory of allowed.directories that all machines share, got "
                f"{url}: the data directory stays behind when another machine runs the cell"
            )
        return None

    def for_child(self) -> list[dict[str, Any]]:
        """The stores with secrets as references, for the range server."""
        return [with_references(store) for store in self.stores]
