"""How many connections the system gives file descriptors for, and who gets how many."""

from __future__ import annotations

import resource
from typing import Final

_KEPT_BACK: Final = 384
"""Descriptors for what is no connection: the store's files, streams, processes of rules, connectors."""
_FEWEST: Final = 64


def client_limit(api_connections: int = 0) -> int:
    """Connections of MQTT clients that there are descriptors for, beside those of the management API."""
    return max(_FEWEST, _raised_limit() - _KEPT_BACK - api_connections)


def api_limit(most: int) -> int:
    """Connections of the management API: ``most``, within an eighth of what the system permits."""
    return max(1, min(most, _raised_limit() // 8))


def _raised_limit() -> int:
    """Ask for as many file descriptors as the system permits; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # some systems permit less than they say
            pass
    return soft
