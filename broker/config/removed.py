"""Settings that are no more, and what has come in their place. A configuration that has one is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.config.assignments import KeyPath
from broker.config.layers import Layer

# Replacement of each removed key.
REMOVED: Final[Mapping[str, str]] = {
    "mqtt.session_expiry_limit": "mqtt.max_session_expiry",
    "lake.trigger": "commit_interval of each table",
}


def removed_settings(layers: Sequence[Layer]) -> list[str]:
    """A sentence for each place where one is set; they are taken out of the layers, so that no one complains twice."""
    return [
        f"{layer.where(path)}: {key} was removed. Try: {successor}"
        for key, successor in REMOVED.items()
        for path in [tuple(key.split("."))]
        for layer in layers
        if _take(layer.values, path)
    ]


def _take(values: Any, path: KeyPath) -> bool:
    for name in path[:-1]:
        values = values.get(name) if isinstance(values, dict) else None
    if not isinstance(values, dict) or path[-1] not in values:
        return False
    del values[path[-1]]
    return True
