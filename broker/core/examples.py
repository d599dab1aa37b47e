"""Examples of functions: files of lines ``EXPRESSION → RESULT``, where the result is JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from broker.core import jsontext

_CALLED: Final = re.compile(r"([a-z][a-z0-9_.]*)\(")


@cache
def examples_in(file: Path) -> Mapping[str, Sequence[dict[str, Any]]]:
    """The examples in a file by function: those that begin with it or, where none does, those that call it."""
    beginning: dict[str, list[dict[str, Any]]] = {}
    calling: dict[str, list[dict[str, Any]]] = {}
    for line in file.read_text().splitlines():
        expression, _, result = line.rpartition(" → ")
        first, *others = _CALLED.findall(expression)
        example = {"expression": expression, "result": jsontext.decode(result)}
        beginning.setdefault(first, []).append(example)
        for name in dict.fromkeys(others):
            calling.setdefault(name, []).append(example)
    return {**calling, **beginning}
