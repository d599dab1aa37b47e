"""What tells the buffer of an action from that of an earlier action of the same name."""

from __future__ import annotations

import uuid
from typing import Final

from broker.core.feature import Services

_PREFIX: Final = "bridges/buffers/"


class BufferIds:
    """Kept in the store, beside the buffers: whoever has a copy of one has the other."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._known: dict[str, str | None] = {}

    def of(self, action: str) -> str:
        """The id of an action's buffer; made when there is none."""
        known = self._known[action] if action in self._known else self._stored(action)
        if known is None:
            known = uuid.uuid4().hex
            self._services.storage.values.put(_PREFIX + action, known.encode())
        self._known[action] = known
        return known

    def forget(self, action: str) -> None:
        """The buffer is gone."""
        if self._known.get(action) is not None or self._stored(action) is not None:
            self._services.storage.values.put(_PREFIX + action, None)
        self._known[action] = None

    def _stored(self, action: str) -> str | None:
        stored = self._services.storage.values.get(_PREFIX + action)
        return None if stored is None else stored.decode()
