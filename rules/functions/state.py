"""Memory between messages, made for a node; and the environment.

The stores are a node's own, so that SQL that is only tried gets a copy to write to: nothing a trial does stays.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from functools import lru_cache
from typing import Any

from rules.functions.registry import Function, StrictText, failure, function, make
from rules.sql.limits import MAX_STORE_BYTES, MAX_STORE_CLIENTS, MAX_STORE_ENTRIES, MAX_VARIABLES
from rules.sql.values import UNDEFINED, text_of
from rules.sql.work import spend

_VARIABLE_PREFIXES = ("SLUICEVAR_", "EMQXVAR_")
# Bytes of a value in addition to its text, roughly.
_OVERHEAD_BYTES = 64


class Entries:
    """Values by key, with an account of their size."""

    __slots__ = ("_sizes", "size_bytes", "values")

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self._sizes: dict[Any, int] = {}
        self.size_bytes = 0

    def put(self, key: Any, value: Any, size_bytes: int) -> Any:
        """Keep a value; gives the previous one or undefined."""
        previous = self.pop(key)
        self.values[key], self._sizes[key] = value, size_bytes
        self.size_bytes += size_bytes
        return previous

    def pop(self, key: Any) -> Any:
        """Forget a key; gives its value or undefined."""
        self.size_bytes -= self._sizes.pop(key, 0)
        return self.values.pop(key, UNDEFINED)

    def size_of(self, key: Any) -> int:
        """Bytes that the value of a key takes."""
        return self._sizes.get(key, 0)

    def copy(self) -> Entries:
        """The same values, to be changed apart."""
        entries = Entries()
        entries.values, entries._sizes, entries.size_bytes = (
            dict(self.values),
            dict(self._sizes),
            self.size_bytes,
        )
        return entries


class Memory:
    """Values that rules keep between messages: one store for all, and one for each client."""

    def __init__(self) -> None:
        self.shared = Entries()
        self._private: OrderedDict[Any, Entries] = OrderedDict()
        self._private_bytes = 0

    def copy(self) -> Memory:
        """A memory of the same content, to be changed apart."""
        memory = Memory()
        memory.shared = self.shared.copy()
        memory._private = OrderedDict(
            (client, entries.copy()) for client, entries in list(self._private.items())
        )
        memory._private_bytes = self._private_bytes
        return memory

    def put_shared(self, key: Any, value: Any) -> None:
        """Keep a value for all rules."""
        size = _size_bytes(value)
        _check_room(
            "kv_store_put",
            self.shared,
            key,
            self.shared.size_bytes + size,
            "delete some with kv_store_del",
        )
        self.shared.put(key, value, size)

    def put_private(self, client: Any, key: Any, value: Any) -> Any:
        """Keep a value for a client; gives the previous one."""
        size = _size_bytes(value)
        entries = self._private.get(client) or Entries()
        total = self._private_bytes + size
        _check_room("proc_dict_put", entries, key, total, "delete some with proc_dict_del")
        self._private[client] = entries
        self._private.move_to_end(client)
        before = entries.size_bytes
        previous = entries.put(key, value, size)
        self._private_bytes += entries.size_bytes - before
        while len(self._private) > MAX_STORE_CLIENTS:
            _, forgotten = self._private.popitem(last=False)
            self._private_bytes -= forgotten.size_bytes
        return previous

    def get_private(self, client: Any, key: Any) -> Any:
        """The value of a client's key, or undefined."""
        entries = self._private.get(client)
        return UNDEFINED if entries is None else entries.values.get(key, UNDEFINED)

    def pop_private(self, client: Any, key: Any) -> Any:
        """Forget a client's key; gives its value or undefined."""
        entries = self._private.get(client)
        if entries is None:
            return UNDEFINED
        before = entries.size_bytes
        previous = entries.pop(key)
        self._private_bytes += entries.size_bytes - before
        if not entries.values:
            del self._private[client]
        return previous


def state_functions(memory: Memory) -> list[Function]:
    """``kv_store_*`` and ``proc_dict_*`` on a memory."""

    def kv_store_put(key: Any, value: Any) -> bool:
        """Keep a value under a key, for all rules until the broker stops."""
        memory.put_shared(_key(key), value)
        return True

    def kv_store_get(key: Any, default: Any = UNDEFINED) -> Any:
        """The value kept under a key, or the default."""
        return memory.shared.values.get(_key(key), default)

    def kv_store_del(key: Any) -> bool:
        """Forget a key."""
        memory.shared.pop(_key(key))
        return True

    def proc_dict_put(client: Any, key: Any, value: Any) -> Any:
        """Keep a value under a key, for messages of the same client; gives the previous value."""
        return memory.put_private(_key(client), _key(key), value)

    def proc_dict_get(client: Any, key: Any) -> Any:
        """The value kept under a key for this client."""
        return memory.get_private(_key(client), _key(key))

    def proc_dict_del(client: Any, key: Any) -> Any:
        """Forget a key of this client; gives the previous value."""
        return memory.pop_private(_key(client), _key(key))

    return [
        make(kv_store_put, returns="boolean", is_pure=False),
        make(kv_store_get, is_pure=False),
        make(kv_store_del, returns="boolean", is_pure=False),
        make(proc_dict_put, column="clientid", is_pure=False),
        make(proc_dict_get, column="clientid", is_pure=False),
        make(proc_dict_del, column="clientid", is_pure=False),
    ]


def _check_room(name: str, entries: Entries, key: Any, total_bytes: int, remedy: str) -> None:
    if key not in entries.values and len(entries.values) >= MAX_STORE_ENTRIES:
        raise failure(name, f"the store holds {MAX_STORE_ENTRIES} keys already; {remedy}")
    if total_bytes - entries.size_of(key) > MAX_STORE_BYTES:
        raise failure(name, f"the store would hold more than {MAX_STORE_BYTES} bytes; {remedy}")


def _size_bytes(value: Any) -> int:
    """About what a value takes in memory."""
    size = 0
    pending = [value]
    while pending:
        item = pending.pop()
        kind = type(item)
        size += _OVERHEAD_BYTES
        if kind is str or kind is bytes:
            size += len(item)
        elif kind is dict:
            spend(2 * len(item), 160)
            pending += item.keys()
            pending += item.values()
        elif kind is list:
            spend(len(item), 160)
            pending += item
        elif kind is int:
            size += item.bit_length() // 8
    return size


def _key(key: Any) -> Any:
    """Keys of any type, distinguished by type and value."""
    return (type(key), text_of(key))


@function(returns="string", is_pure=False)
def getenv(name: StrictText) -> str:
    """The environment variable SLUICEVAR_name (or EMQXVAR_name), as it was when first asked for; empty if unset."""
    return _variable(name)


@lru_cache(maxsize=MAX_VARIABLES)
def _variable(name: str) -> str:
    if "\0" in name or "=" in name:
        return ""
    for prefix in _VARIABLE_PREFIXES:
        value = os.environ.get(prefix + name)
        if value is not None:
            return value
    return ""
