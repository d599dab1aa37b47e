"""How many connections the system gives file descriptors for."""

from __future__ import annotations

import resource
from typing import Final

_KEPT_BACK: Final = 512
"""Descriptors for what is no client: the store's files, streams, the API, processes of rules."""
_FEWEST: Final = 64


def raise_file_limit() -> int:
    """Ask for as many file descriptors as the system permits; how many connections that is room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # some systems permit less than they say
            pass
    return max(_FEWEST, soft - _KEPT_BACK)
