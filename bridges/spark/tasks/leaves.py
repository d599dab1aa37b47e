"""Assignment of keys to a table's files.

Each file is a leaf of a binary tree over the bits of the key's hash: the leaf ``01`` has the keys whose hash begins so.
A leaf that grows too large is split into two, so a small table is one file, and in a large one a batch rewrites only
the files of its keys. The name of a file says which leaf it is.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from bridges.spark.tasks.keys import HASH_BITS

# Bits of their hash by which rows of a batch are put in order, so that a leaf's task reads a part of them.
GROUP_BITS: Final = 4
_NAME: Final = re.compile(r"(?:.*/)?key-([01]*)-[0-9a-f]{32}\.parquet")


def file_name(leaf: str) -> str:
    """A new name for a file of a leaf."""
    return f"key-{leaf}-{uuid.uuid4().hex}.parquet"


def leaves_of(paths: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Files by their leaf, and those that are none: another engine has written or joined them."""
    paths = list(paths)
    named = [(match[1], path) for path in paths if (match := _NAME.fullmatch(path))]
    leaves = dict(named)
    nested = any(leaf[:size] in leaves for leaf in leaves for size in range(len(leaf)))
    if nested or len(leaves) < len(named):
        return {}, paths
    return leaves, [path for path in paths if path not in leaves.values()]


def cover(leaves: Mapping[str, str]) -> list[str]:
    """The leaves with those that have no file, so that each key is in one."""
    inner = {leaf[:size] for leaf in leaves for size in range(len(leaf))}
    parts = []
    waiting = [""]
    while waiting:
        leaf = waiting.pop()
        if leaf in inner:
            waiting += [leaf + "1", leaf + "0"]
        else:
            parts.append(leaf)
    return parts


def groups_of(leaf: str) -> range:
    """The groups of a batch that may have rows of a leaf."""
    head = leaf[:GROUP_BITS]
    first = int(head.ljust(GROUP_BITS, "0"), 2)
    return range(first, first + (1 << (GROUP_BITS - len(head))))


def is_in(hashes: Any, leaf: str) -> Any:
    """Mask of the hashes that are in a leaf."""
    if not leaf:
        return np.ones(len(hashes), bool)
    return hashes >> np.uint32(HASH_BITS - len(leaf)) == int(leaf, 2)
