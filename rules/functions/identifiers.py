"""Identifiers and random texts and numbers."""

from __future__ import annotations

import random
import secrets
import string as characters
import uuid
from typing import Annotated

from rules.functions.registry import at_least, between, function
from rules.sql.limits import MAX_RANDOM_CHARACTERS

_URL_SAFE = characters.ascii_letters + characters.digits + "-_"


@function(returns="string", is_pure=False)
def uuid_v4() -> str:
    """A random UUID."""
    return str(uuid.uuid4())


@function(returns="string", is_pure=False)
def uuid_v4_no_hyphen() -> str:
    """A random UUID without hyphens."""
    return uuid.uuid4().hex


@function(returns="string", is_pure=False)
def rand_str(length: Annotated[int, between(1, MAX_RANDOM_CHARACTERS)]) -> str:
    """So many random characters that may stand in a URL: letters, digits, - and _. Not to be guessed."""
    return "".join(map(_URL_SAFE.__getitem__, (byte & 63 for byte in secrets.token_bytes(length))))


@function(returns="long", is_pure=False)
def rand_int(n: Annotated[int, at_least(1)]) -> int:
    """A random integer from 1 to n."""
    return random.randint(1, n)
