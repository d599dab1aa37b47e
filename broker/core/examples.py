"""Examples of functions: files of lines ``EXPRESSION → RESULT``, where the result is JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from typing_extensions import TypedDict

from broker.core import jsontext

_CALLED: Final = re.compile(r"([a-z][a-z0-9_.]*)\(")


class FunctionExample(TypedDict):
    """A call, and what it gives; SQL on the example of the event `message.publish`."""

    expression: str
    result: Any


class FunctionView(TypedDict):
    """A function of rules (`sql`) or transformations (`variform`). `origin` is `sluice` or the plugin it is from."""

    name: str
    language: Literal["sql", "variform"]
    category: str
    signature: str
    returns: str
    documentation: str
    origin: str
    examples: Sequence[FunctionExample]


@cache
def examples_in(file: Path) -> Mapping[str, Sequence[FunctionExample]]:
    """The examples in a file by function: those that begin with it or, where none does, those that call it."""
    beginning: dict[str, list[FunctionExample]] = {}
    calling: dict[str, list[FunctionExample]] = {}
    for line in file.read_text().splitlines():
        expression, _, result = line.rpartition(" → ")
        first, *others = _CALLED.findall(expression)
        example: FunctionExample = {"expression": expression, "result": jsontext.decode(result)}
        beginning.setdefault(first, []).append(example)
        for name in dict.fromkeys(others):
            calling.setdefault(name, []).append(example)
    return {**calling, **beginning}
