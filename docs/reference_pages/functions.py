"""The pages of functions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from docs.reference_pages.markdown import page, table
from rules import event_catalogue
from rules.functions.registry import Function
from transforms.variform.functions import catalogue


def rule_functions(functions: Iterable[Function]) -> str:
    """Functions of the rule language, and events."""
    rows = [
        (
            f"`{function.signature}`",
            _parameters(function),
            function.returns.name,
            function.documentation,
            _examples(function.as_dict()["examples"]),
        )
        for function in functions
    ]
    events = [_event(event) for event in event_catalogue.catalogue()]
    return page(
        "Functions of the rule language",
        f"{len(rows)} functions; `GET /api/v1/functions` lists those of a running node. Arguments in brackets may be "
        "left out. An argument of another type than the one named makes the rule fail for that message, which is "
        "counted; where it is a literal, the rule is refused when it is saved.",
        table(("function", "arguments", "result", "meaning", "examples"), rows),
        "## Events\n\nWhat `FROM` may name besides topic filters. `GET /api/v1/events` lists them with an example.",
        *events,
    )


def _event(event: Mapping[str, Any]) -> str:
    rows = [
        (
            f"`{column['name']}`",
            column["type"] + ", may be absent" * column["nullable"],
            column["text"],
        )
        for column in event["columns"]
    ]
    return "\n\n".join(
        (
            f"### {event['name']}",
            f"{event['text']} Example:",
            f"```sql\n{event['rule']}\n```",
            table(("column", "type", "meaning"), rows),
        )
    )


def _parameters(function: Function) -> str:
    kinds = [
        (parameter.name, parameter.kind.name if parameter.kind else "any")
        for parameter in function.parameters
    ]
    return ", ".join(f"{name}: {kind}" for name, kind in kinds)


def variform() -> str:
    """Functions of variform."""
    rows = [
        (f"`{one['signature']}`", one["returns"], one["documentation"], _examples(one["examples"]))
        for one in catalogue()
    ]
    return page(
        "Functions of variform",
        "Variform is the expression language of transformations: calls, variables, literals. "
        "`upper(nth(2, topic_split(topic)))` is an expression; `payload.a.b`, `topic`, `clientid` and "
        "`user_property.NAME` are variables. `POST /api/v1/variform:eval` tries one. `and`, `coalesce`, `iif`, "
        "`is_empty` and `or` evaluate only the arguments that they need.",
        table(("function", "result", "meaning", "examples"), rows),
    )


def _examples(examples: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(
        f"`{one['expression']}` → `{json.dumps(one['result'], ensure_ascii=False)}`"
        for one in examples
    )
