"""Small values of features that outlive the process, written in the same commit groups as everything else."""

from __future__ import annotations

from collections.abc import Callable

Done = Callable[[BaseException | None], None]


class Values:
    """Values by key, in memory: those of a node without a store. A node with one has ``StoredValues`` of
    ``broker.streams.queues``.

    Keys are paths that begin with the feature's name: ``bridges/positions/...``. Used on the event loop; ``get`` from
    any thread.
    """

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        """The value that is committed, or None."""
        return self._values.get(key)

    def put(self, key: str, value: bytes | None) -> None:
        """Set a value, or delete it with None, in the commit group that is gathering."""
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value

    def names(self, prefix: str) -> list[str]:
        """The keys that begin with ``prefix``, in order."""
        return sorted(key for key in self._values if key.startswith(prefix))

    def when_committed(self, done: Done) -> None:
        """Call ``done`` once all earlier puts, messages and records are committed, or with the error that prevented
        it."""
        done(None)

    @property
    def is_congested(self) -> bool:
        """True if more waits for the disk than the settings allow: sources then pause."""
        return False
