"""Where requests go: the connector's address and behind it path and query made of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from yarl import URL

from bridges.resource.errors import NeverAgain
from bridges.resource.templates import value_template
from broker.core.action import Row
from broker.core.template import Template
from rules.actions.text import rendered
from rules.sql.values import UNDEFINED

TargetOf = Callable[[Row], str]
_WRITTEN: Final = "!$%&'()*+,-./:;=?@[]_~"
"""What a path may hold as it is written by whoever set it, with the query; ``%`` because it may be encoded."""


def origin_and_base(address: str) -> tuple[URL, str]:
    """Scheme, host and port of an address, and the path that it begins with, without a ``/`` at its end."""
    url = URL(address)
    return url.origin(), url.raw_path.rstrip("/")


def target_template(base: str, path: str, query: Mapping[str, str]) -> TargetOf:
    """The path and query of a row's request.

    Values are percent-encoded whole, ``/`` among them: whatever they are, they stay in the segment or parameter that
    they stand in. A row for which a segment of the path would be ``.`` or ``..``, which servers and proxies take for
    steps in the tree, has no request.
    """
    parameters = [(quote(name, safe=""), value_template(value)) for name, value in query.items()]
    if "${" not in path:
        fixed = _joined(base, quote(path, safe=_WRITTEN))
        _check_segments(fixed)
        return lambda row: _with_query(fixed, parameters, row)
    render = Template(_encoded(path), _value, undefined=UNDEFINED, when_undefined=_missing).render

    def made(row: Row) -> str:
        found = _joined(base, render(row))
        _check_segments(found)
        return _with_query(found, parameters, row)

    return made


def _encoded(path: str) -> str:
    """The text between placeholders, encoded; placeholders as they are."""
    return quote(path, safe=_WRITTEN + "${}")


def _joined(base: str, path: str) -> str:
    if not path:
        return base or "/"
    return f"{base}{path}" if path[0] in "/?" and (base or path[0] == "/") else f"{base}/{path}"


def _value(value: Any) -> str:
    return quote(rendered(value), safe="")


def _missing(path: str) -> str:
    raise NeverAgain(f"the row has no '{path}', which the path needs")


def _check_segments(target: str) -> None:
    if "/." not in target and "%2" not in target:
        return
    for segment in target.partition("?")[0].split("/"):
        if unquote(segment) in (".", ".."):
            raise NeverAgain(f"the path {target!r} has the segment {segment!r}, which would lead elsewhere")


def _with_query(path: str, parameters: list[tuple[str, Callable[[Row], Any]]], row: Row) -> str:
    pairs = [(name, value_of(row)) for name, value_of in parameters]
    text = "&".join(f"{name}={_value(value)}" for name, value in pairs if value is not None)
    if not text:
        return path
    return f"{path}{'&' if '?' in path else '?'}{text}"
