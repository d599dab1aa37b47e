"""Random values, clock and environment."""

from __future__ import annotations

import os
import secrets
import time

from transforms.variform.errors import badarg
from transforms.variform.registry import function
from transforms.variform.values import bounded

# ``getenv('SITE')`` reads ``SLUICEVAR_SITE``: nothing else of the environment can be read.
ENVIRONMENT_PREFIX = "SLUICEVAR_"

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@function("rand_str")
def rand_str(length: int) -> str:
    """A string of ``length`` random letters and digits."""
    if length < 1:
        raise badarg("rand_str", "the length must be at least 1")
    bounded("rand_str", length)
    # Three bytes for each index into 62 letters: the bias is under 4 in 10^6.
    noise = secrets.token_bytes(3 * length)
    return "".join(
        [_LETTERS[int.from_bytes(noise[i : i + 3], "big") % 62] for i in range(0, 3 * length, 3)]
    )


@function("rand_int")
def rand_int(most: int) -> int:
    """A random integer from 1 to ``most``."""
    if most < 1:
        raise badarg("rand_int", "the limit must be at least 1")
    return secrets.randbelow(most) + 1


@function("timestamp_s")
def timestamp_s() -> int:
    """Seconds since 1970."""
    return int(time.time())


@function("timestamp_ms")
def timestamp_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@function("getenv")
def getenv(name: str) -> str:
    """The environment variable ``SLUICEVAR_name``, "" when it is not set."""
    try:
        return os.environ.get(ENVIRONMENT_PREFIX + name, "")
    except ValueError:
        raise badarg("getenv", "not a name of an environment variable") from None
