"""Templates of connectors' fields: compiled once, rendered for each row.

``${a.b}`` is the value at that path of the row, ``${.}`` the whole row as JSON; the rest is literal text. Bodies, keys
and values that are JSON around their placeholders are JSON for every row (``broker.core.template``). Where the row
has no such value: ``text_template`` writes ``undefined``, ``value_template`` gives None, which is a NULL key or value
in Kafka, NULL in a database, and a header that is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bridges.resource.errors import NeverAgain
from broker.core.action import Row
from broker.core.marks import text_of_bytes
from broker.core.placeholders import NOT_PLACEHOLDER_OR_SECRET
from broker.core.template import Template
from rules.actions.text import rendered, template, topic_template
from rules.sql.values import UNDEFINED, json_bytes

_SHOWN: Final = 20

TextOf = Callable[[Row], str]
BytesOf = Callable[[Row], "bytes | None"]
ValueOf = Callable[[Row], Any]


def why_no_template(text: str) -> str:
    """The problem with ``${`` in a template that is not a placeholder, most likely a mistake; else empty."""
    at = NOT_PLACEHOLDER_OR_SECRET.search(text)
    if at is None:
        return ""
    excerpt, brace, _ = text[at.start() : at.start() + _SHOWN].partition("}")
    return (
        f"{excerpt + brace!r} is not a placeholder: '${{a.b}}' has letters, digits, '.' and '_', and ends; "
        "write '${$}{' for the signs themselves"
    )


def text_of(value: Any) -> str:
    """The text of a value; of bytes that are not UTF-8 the JSON text of their mark."""
    text = rendered(value)
    return text if isinstance(text, str) else text_of_bytes(text)


def text_template(text: str) -> TextOf:
    """The text for a row: a topic, a path, an address. What is missing is ``undefined``."""
    return topic_template(text).render


def strict_template(text: str, needed_by: str) -> TextOf:
    """The same; a row without a named value is rejected, with a sentence that names ``needed_by``."""

    def missing(path: str) -> str:
        raise NeverAgain(f"the row has no '{path}', which {needed_by} needs")

    return Template(text, rendered, undefined=UNDEFINED, when_undefined=missing).render


def bytes_template(text: str) -> BytesOf:
    """Bytes for a row; None when it is one placeholder whose value is missing or null. Empty is the whole row as
    JSON."""
    if text in ("", "${.}", "${}"):
        return json_bytes
    compiled = template(text)
    render = compiled.render_bytes
    value_of = compiled.value
    only = compiled.only
    if only is None:
        return render
    if len(only) == 1:
        return _column(only[0], render)

    def one(row: Row) -> bytes | None:
        value = value_of(row)
        if type(value) is str:
            return value.encode()
        return None if value is None or value is UNDEFINED else render(row)

    return one


def _column(name: str, render: BytesOf) -> BytesOf:
    """The same for a column, as most are: a call less."""

    def one(row: Row) -> bytes | None:
        value = row.get(name)
        if type(value) is str:
            return value.encode()
        return None if value is None or value is UNDEFINED else render(row)

    return one


def value_template(text: str) -> ValueOf:
    """The value itself, with its type, where the template is one placeholder; else the text. None when missing."""
    value_of = template(text).value

    def value(row: Row) -> Any:
        row_value = value_of(row)
        return None if row_value is UNDEFINED else row_value

    return value
