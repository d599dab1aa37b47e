"""Random values, clock and environment."""

from __future__ import annotations

import os
import secrets
import time
from functools import cache
from typing import Any

from transforms.variform.errors import badarg
from transforms.variform.registry import function
from transforms.variform.values import bounded, integer, text

ENVIRONMENT_PREFIX = "SLUICEVAR_"
"""``getenv('SITE')`` reads ``SLUICEVAR_SITE``: nothing else of the environment can be read."""

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@function("rand_str", 1)
def rand_str(length: Any) -> str:
    """A text of ``length`` random letters and digits."""
    count = integer("rand_str", length)
    if count < 1:
        raise badarg("rand_str", "the length must be at least 1")
    bounded("rand_str", count)
    # Three bytes for each index into 62 letters: the bias is under 4 in 10^6.
    noise = secrets.token_bytes(3 * count)
    return "".join([_LETTERS[int.from_bytes(noise[i : i + 3], "big") % 62] for i in range(0, 3 * count, 3)])


@function("rand_int", 1)
def rand_int(most: Any) -> int:
    """A random integer from 1 to ``most``."""
    limit = integer("rand_int", most)
    if limit < 1:
        raise badarg("rand_int", "the limit must be at least 1")
    return secrets.randbelow(limit) + 1


@function("timestamp_s", 0)
def timestamp_s() -> int:
    """Seconds since 1970."""
    return int(time.time())


@function("timestamp_ms", 0)
def timestamp_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@function("getenv", 1)
def getenv(name: Any) -> str:
    """The environment variable ``SLUICEVAR_name``, "" when it is not set; read once."""
    return _environment(text("getenv", name))


@cache
def _environment(name: str) -> str:
    try:
        return os.environ.get(ENVIRONMENT_PREFIX + name, "")
    except ValueError:
        raise badarg("getenv", "not a name of an environment variable") from None
