"""Identifiers, memory between messages, the environment."""

from __future__ import annotations

import os
import uuid
from collections import OrderedDict
from functools import cache
from typing import Any

from rules.functions.registry import StrictText, failure, function
from rules.sql.values import UNDEFINED, text_of

MAX_ENTRIES = 100_000
"""Most keys of the store shared by all rules; more are refused."""
MAX_CLIENTS = 10_000
"""Most clients with a store of their own; the one not used for longest is forgotten."""

_VARIABLE_PREFIXES = ("SLUICEVAR_", "EMQXVAR_")
_shared: dict[Any, Any] = {}
_private: OrderedDict[Any, dict[Any, Any]] = OrderedDict()


@function(returns="string")
def uuid_v4() -> str:
    """A random UUID."""
    return str(uuid.uuid4())


@function(returns="string")
def uuid_v4_no_hyphen() -> str:
    """A random UUID without hyphens."""
    return uuid.uuid4().hex


@function(returns="boolean")
def kv_store_put(key: Any, value: Any) -> bool:
    """Keep a value under a key, for all rules until the broker stops."""
    name = _key(key)
    if name not in _shared and len(_shared) >= MAX_ENTRIES:
        raise failure("kv_store_put", f"the store holds {MAX_ENTRIES} keys already; delete some with kv_store_del")
    _shared[name] = value
    return True


@function()
def kv_store_get(key: Any, default: Any = UNDEFINED) -> Any:
    """The value kept under a key, or the default."""
    return _shared.get(_key(key), default)


@function(returns="boolean")
def kv_store_del(key: Any) -> bool:
    """Forget a key."""
    _shared.pop(_key(key), None)
    return True


@function(column="clientid")
def proc_dict_put(client: Any, key: Any, value: Any) -> Any:
    """Keep a value under a key, for messages of the same client; gives the previous value."""
    entries = _of_client(client)
    previous = entries.get(_key(key), UNDEFINED)
    entries[_key(key)] = value
    return previous


@function(column="clientid")
def proc_dict_get(client: Any, key: Any) -> Any:
    """The value kept under a key for this client."""
    return _of_client(client).get(_key(key), UNDEFINED)


@function(column="clientid")
def proc_dict_del(client: Any, key: Any) -> Any:
    """Forget a key of this client; gives the previous value."""
    return _of_client(client).pop(_key(key), UNDEFINED)


def _key(key: Any) -> Any:
    """Keys of any type, told apart by type and value."""
    return (type(key), text_of(key))


def _of_client(client: Any) -> dict[Any, Any]:
    owner = _key(client)
    entries = _private.setdefault(owner, {})
    _private.move_to_end(owner)
    if len(entries) > MAX_ENTRIES:
        raise failure("proc_dict_put", f"a client may keep {MAX_ENTRIES} keys")
    while len(_private) > MAX_CLIENTS:
        _private.popitem(last=False)
    return entries


@function(returns="string")
def getenv(name: StrictText) -> str:
    """The environment variable SLUICEVAR_name (or EMQXVAR_name), as it was when first asked for; empty if unset."""
    return _variable(name)


@cache
def _variable(name: str) -> str:
    for prefix in _VARIABLE_PREFIXES:
        value = os.environ.get(prefix + name)
        if value is not None:
            return value
    return ""
