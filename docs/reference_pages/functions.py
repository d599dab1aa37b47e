"""The pages of functions."""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.events import EVENT_TYPES
from docs.reference_pages.markdown import page, table
from rules.functions.registry import Function
from transforms.variform.functions import LAZY
from transforms.variform.registry import FUNCTIONS


def rule_functions(functions: Iterable[Function]) -> str:
    """Functions of the rule language, and events."""
    rows = [
        (f"`{function.signature}`", _parameters(function), function.returns.name, function.documentation)
        for function in functions
    ]
    events = [(f"`{event.topic}`", f"`{event.name}`") for event in EVENT_TYPES.values()]
    return page(
        "Functions of the rule language",
        f"{len(rows)} functions; `GET /api/v1/functions` lists those of a running node. Arguments in brackets may be "
        "left out. An argument of another type than the one named makes the rule fail for that message, which is "
        "counted; where it is a literal, the rule is refused when it is saved.",
        table(("function", "arguments", "result", "meaning"), rows),
        "## Events\n\nWhat `FROM` may name besides topic filters:\n\n" + table(("FROM", "column `event`"), events),
    )


def _parameters(function: Function) -> str:
    kinds = [(parameter.name, parameter.kind.name if parameter.kind else "any") for parameter in function.parameters]
    return ", ".join(f"{name}: {kind}" for name, kind in kinds)


def variform() -> str:
    """Functions of variform."""
    rows = [
        (
            f"`{function.name}`",
            function.arity,
            function.help + (" Only in transformations." if function.only_in_transformations else ""),
        )
        for function in sorted(FUNCTIONS.values(), key=lambda function: function.name)
    ]
    lazy = [(f"`{name}`", f"{least} to {most} arguments" if least != most else f"{least} arguments", says)
            for name, (least, most, says) in sorted(LAZY.items())]  # fmt: skip
    return page(
        "Functions of variform",
        "Variform is the expression language of transformations: calls, variables, literals. "
        "`upper(nth(2, topic_split(topic)))` is an expression; `payload.a.b`, `topic`, `clientid` and "
        "`user_property.NAME` are variables. `POST /api/v1/variform:eval` tries one.",
        table(("function", "takes", "meaning"), rows),
        "These evaluate only the arguments that they need:\n\n" + table(("function", "takes", "meaning"), lazy),
    )
